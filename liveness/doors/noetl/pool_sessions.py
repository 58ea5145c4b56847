"""Remembers which client registered what, because NoETL's clients heartbeat with a name alone.

It is kept in memory only. After a restart of the server, a heartbeat speaks for whoever registered the name last, which the
server knows, until the client registers again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

REMEMBERED_MAX = 100_000


class Registered(NamedTuple):
    key: str
    """The worker key under which it was registered. If replicas are numbered, it ends with the number."""
    name: str
    """The name that the client used."""
    session_id: str


class PoolSessions:
    def __init__(self) -> None:
        self._by_client: OrderedDict[tuple[str, str], Registered] = OrderedDict()
        """By the client's address and the worker key that it named."""

    def remember(self, address: str, named_key: str, registered: Registered) -> None:
        place = (address, named_key)
        self._by_client[place] = registered
        self._by_client.move_to_end(place)
        while len(self._by_client) > REMEMBERED_MAX:
            self._by_client.popitem(last=False)

    def forget(self, address: str, named_key: str) -> None:
        self._by_client.pop((address, named_key), None)

    def find(self, address: str, named_key: str) -> Registered | None:
        return self._by_client.get((address, named_key))
