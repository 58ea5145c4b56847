"""What is known about a relay: values for those who ask how it is doing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShardRelayStatus:
    shard_id: int
    postponed_tasks: int
    """Reschedules that wait for the broker to come back."""
    acknowledged_seq: int
    """Everything in the log up to here was acknowledged; 0 where events are not relayed, as are the next two."""
    last_seq: int
    """The newest event of the log."""
    backlog: int
    """Events that are not acknowledged yet."""


@dataclass(frozen=True, slots=True)
class RelayStatus:
    """Of one server."""

    servers: tuple[str, ...]
    """Without what is secret."""
    stream: str
    relays_events: bool
    connected: bool
    last_error: str
    """Empty: there was none since the start."""
    last_error_wall_ms: int
    shards: tuple[ShardRelayStatus, ...]


@dataclass(frozen=True, slots=True)
class ReplaySelection:
    since_wall_ms: int
    namespace: str = ""
    """Empty: all."""
    task_queue: str = ""
    """Of reschedules. Empty: all."""
    events: bool = False


@dataclass(slots=True)
class ReplayResult:
    """How much was published again."""

    reschedules: int = 0
    events: int = 0
    duplicates: int = 0
    """Those of both that the broker still had."""
    refused: int = 0
    """Those of both that it did not take."""
