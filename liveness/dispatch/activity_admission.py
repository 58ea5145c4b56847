"""How many activities may be open: the part of the quotas that activity ownership asks."""

from __future__ import annotations

from typing import Protocol

from liveness.engine.shard import Shard


class ActivityQuotas(Protocol):
    def has_room_for_activity(self, shard: Shard, namespace: str, payload_bytes: int) -> bool:
        """Whether the shard may open one more activity. False: acquire slots first. Raises if the namespace has its quota."""

    async def acquire_for_activity(self, shard: Shard, namespace: str, payload_bytes: int) -> None:
        """Acquire slots for one more activity. Raises if the namespace has its quota."""


class NoQuotas:
    """For a node that limits nothing."""

    def has_room_for_activity(self, shard: Shard, namespace: str, payload_bytes: int) -> bool:
        return True

    async def acquire_for_activity(self, shard: Shard, namespace: str, payload_bytes: int) -> None:
        """Never called: there is always room."""
