"""Durable worker liveness: heartbeats, leases, and rescheduling of the work that dead workers held.

Programs import the SDK from here: `from liveness import Worker`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from liveness.sdk import TLS, ActivityRef, Client, FencingToken, RetryPolicy, TokenFile, Worker

__all__ = ["TLS", "ActivityRef", "Client", "FencingToken", "RetryPolicy", "TokenFile", "Worker"]


def __getattr__(name: str) -> object:
    """Load the SDK on first use. A server, and a command that only prints its help, never load it."""
    if name in __all__:
        from liveness import sdk

        return getattr(sdk, name)
    raise AttributeError(f"module 'liveness' has no attribute {name!r}")
