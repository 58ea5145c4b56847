"""The settings of a bridge, validated by the command that starts it."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from liveness.client_credentials import Credentials

DEFAULT_INTERVAL_MS = 60_000
"""How often Temporal's SDKs send worker heartbeats unless they are told otherwise."""
INTERVALS_PER_LEASE = 3
UNHEARD_LEASE_MS = 3_600_000
"""The lease of a worker that has sent no heartbeat yet, and perhaps never will."""
TYPE_PREFIX = "type:"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamTls:
    ca: bytes | None = None
    """PEM; None: the authorities of this system."""
    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    server_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenTls:
    certificate: bytes
    key: bytes = field(repr=False)
    client_ca: bytes | None = None
    """If set, workers must show a certificate that it signed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeSettings:
    upstream: tuple[str, ...]
    """Addresses of Temporal's frontend."""
    liveness: tuple[str, ...]
    """Addresses of liveness."""
    listen: str = "127.0.0.1:7233"
    credentials: Credentials = field(default_factory=Credentials)
    """For liveness."""
    upstream_tls: UpstreamTls | None = None
    upstream_api_key: str = field(default="", repr=False)
    """Added to calls that bring no credential of their own."""
    listen_tls: ListenTls | None = None
    lease_ms: int = 0
    """0: three heartbeat intervals, which each worker's heartbeats tell."""
    restart_allowance_ms: int = 30_000
    """For how long no bridge may be there before silence counts."""
    hint_grace_ms: int = 2_000
    """How long a worker whose connection broke may take to call again; 0: a broken connection means nothing."""
    bind_timeout_ms: int = 1_000
    """How long the answer of a poll waits for its record."""
    skip: tuple[str, ...] = ()
    """Task queues that are left alone, and activity types as `type:NAME`; * stands for any characters."""
    only: tuple[str, ...] = ()
    """If not empty, all others are left alone."""
    temporal_ui: str = ""
    """The address of Temporal's web page, for links."""

    def is_left_alone(self, task_queue: str, activity_type: str) -> bool:
        if self.only and not _matches(self.only, task_queue, activity_type):
            return True
        return _matches(self.skip, task_queue, activity_type)


def _matches(patterns: tuple[str, ...], task_queue: str, activity_type: str) -> bool:
    return any(
        fnmatchcase(activity_type, pattern.removeprefix(TYPE_PREFIX))
        if pattern.startswith(TYPE_PREFIX)
        else fnmatchcase(task_queue, pattern)
        for pattern in patterns
    )
