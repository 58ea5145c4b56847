"""Worker liveness: who is alive, who is not, and what has to be done about it.

What programs that are workers need, they import from here: `from liveness import Worker`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from liveness.sdk import ActivityRef, Client, FencingToken, RetryPolicy, Worker

__all__ = ["ActivityRef", "Client", "FencingToken", "RetryPolicy", "Worker"]


def __getattr__(name: str) -> object:
    """The SDK is loaded when it is asked for: a server, and a command that only prints its help, do without."""
    if name in __all__:
        from liveness import sdk

        return getattr(sdk, name)
    raise AttributeError(f"module 'liveness' has no attribute {name!r}")
