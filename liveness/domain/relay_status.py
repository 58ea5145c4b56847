"""The status of the relay to a broker, as operators query it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShardRelayStatus:
    shard_id: int
    postponed_tasks: int
    """Reschedules that wait for the broker to come back."""
    acknowledged_seq: int
    """The broker acknowledged every event up to this one. 0 if events are not relayed, like the next two fields."""
    last_seq: int
    """The newest event of the log."""
    backlog: int
    """Events that the broker has not acknowledged yet."""


@dataclass(frozen=True, slots=True)
class RelayStatus:
    servers: tuple[str, ...]
    """URLs without credentials."""
    stream: str
    relays_events: bool
    connected: bool
    last_error: str
    """Empty if there was none since the start."""
    last_error_wall_ms: int
    shards: tuple[ShardRelayStatus, ...]


@dataclass(frozen=True, slots=True)
class ReplaySelection:
    since_wall_ms: int
    namespace: str = ""
    """Empty for all."""
    task_queue: str = ""
    """Applies to reschedules only. Empty for all."""
    events: bool = False


@dataclass(slots=True)
class ReplayResult:
    """Counts of republished messages."""

    reschedules: int = 0
    events: int = 0
    duplicates: int = 0
    """Messages of both kinds that the broker already had."""
    refused: int = 0
    """Messages of both kinds that the broker refused."""
