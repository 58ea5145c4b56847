"""The registry entry: what only registered components have, as a part of their worker's state.

The component with kind K and name N is the worker `K:N`. Times are milliseconds on the shard's observed clock unless a name
says otherwise.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import NamedTuple

REPLICAS_MAX = 100
"""How many other processes an entry shows."""
URI_BYTES_MAX = 2_048
STATUS_BYTES_MAX = 64
RUNTIME_BYTES_MAX = 4_096
SESSION_BYTES_MAX = 200
"""Shorter than other session ids may be, because the epoch is added to the session of a key that is registered anew."""
FORMER_SESSIONS_MAX = 20
"""Of how many sessions that had the name before it is remembered what they counted."""
NUMBERS_MAX = 100
"""The highest number that a name can get."""

DEFAULT_STATUS = "ready"
OFFLINE = "offline"
"""The status that is shown of a component whose lease is over."""
LEASE_INTERVALS = 3
"""How many expected intervals a lease has, unless the component asks for another."""
STALE_INTERVALS = 2
"""After how many expected intervals without a heartbeat an entry is stale."""

KIND = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
RESERVED_KINDS = frozenset(("worker", "supervisor"))
"""They belong to supervised processes."""


class ReplicaPolicy(IntEnum):
    """What happens when a second process registers a name whose lease is live. The numbers are those of the API."""

    SHOW = 1
    REFUSE = 2
    NUMBER = 3


class Replica(NamedTuple):
    """A second process under the name of an entry. It holds no lease."""

    session_id: str
    host_name: str = ""
    process_id: str = ""
    uri: str = ""
    seen_ms: int = 0
    first_seen_wall_ms: int = 0
    last_seen_wall_ms: int = 0


class FormerSession(NamedTuple):
    """A session that had the name. Its process may take the name again, and send once more what was counted before."""

    session_id: str
    """Without the epoch that was added to it."""
    sequence: int
    """The last number that was counted."""


class Entry(NamedTuple):
    uri: str = ""
    status: str = DEFAULT_STATUS
    """What it said last; decides nothing."""
    capacity: int | None = None
    """How much it can do at once. None: it did not say."""
    runtime: str = ""
    """A JSON object with what it tells about how it runs."""
    interval_ms: int = 0
    """How often it will be heard; 0 if it did not say."""
    lease_ms: int = 0
    """The lease that it asked for; 0 for three intervals, or for the namespace's default."""
    first_seen_wall_ms: int = 0
    replicas: tuple[Replica, ...] = ()
    """Those that were heard of within a lease, and perhaps some that were not. In the order of their first registration."""

    @property
    def requested_ms(self) -> int | None:
        """The lease to ask for in each heartbeat; None for the default."""
        return self.lease_ms or self.interval_ms * LEASE_INTERVALS or None


def kind_of(instance_key: str) -> str:
    return instance_key.partition(":")[0]


def name_of(instance_key: str) -> str:
    return instance_key.partition(":")[2]


def base_session(session_id: str) -> str:
    """The session id without the epoch that was added to it, when its key was registered anew."""
    base, mark, epoch = session_id.rpartition("#")
    return base if mark and epoch.isdigit() else session_id


def numbered_key(instance_key: str, number: int) -> str:
    """The key under which another process of the name is registered, from 2."""
    return instance_key if number < 2 else f"{instance_key}-{number}"


def live_replicas(entry: Entry, granted_ms: int, now_ms: int) -> tuple[Replica, ...]:
    """The replicas that were heard of within a lease."""
    return tuple(replica for replica in entry.replicas if now_ms < replica.seen_ms + granted_ms)
