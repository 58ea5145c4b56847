"""A server that fails where it is told to: `python -m tests.crash.failing_server serve OPTIONS`, like `liveness serve`.

The file named by FAILPOINT in the environment says `PLACE|HOW`, and is removed by whoever passes that place next, which
then fails once:

    crash   the process kills itself, as by `kill -9`
    stop    it stops itself, as by SIGSTOP
    error   the step fails; whoever asked for it is told what it would be told of such a failure
    delay   the step takes DELAY_MS longer

Only the seams around store, sinks and handlers are wrapped, from outside. All else is the product.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import liveness.server.binding as binding
import liveness.store.sql as sql
from liveness.cli import main
from liveness.domain.errors import Unavailable
from liveness.store.api import ShardCommit
from liveness.store.commit import apply_commits
from liveness.store.errors import CommitRejected, CommitUnknown
from liveness.store.sql import SqlStore
from tasks.relay import RelaySink
from tasks.webhook import WebhookSink

DELAY_MS = 1_300
"""More than the shortest lease."""
HEARTBEATS = {"record_worker_heartbeat", "record_worker_heartbeats"}

_control = Path(os.environ["FAILPOINT"])


def _told_to(place: str) -> str | None:
    try:
        wanted, _, how = _control.read_text().partition("|")
        if wanted != place:
            return None
        _control.unlink()
    except FileNotFoundError:
        return None
    return how


def _rejected() -> Exception:
    return CommitRejected(detail="a failpoint")


def _unknown() -> Exception:
    return CommitUnknown(detail="a failpoint")


def _at_once(place: str, refusal: Callable[[], Exception]) -> bool:
    """Returns whether it is to take longer."""
    match _told_to(place):
        case "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "error":
            raise refusal()
        case "delay":
            return True
    return False


async def _pass(place: str, refusal: Callable[[], Exception]) -> None:
    if _at_once(place, refusal):
        await asyncio.sleep(DELAY_MS / 1_000)


def _pass_blocking(place: str, refusal: Callable[[], Exception]) -> None:
    if _at_once(place, refusal):
        time.sleep(DELAY_MS / 1_000)


def _around(
    owner: type, name: str, place: str, before: Any, after: Any, *, only_if_deleted: bool = False
) -> None:
    real: Callable[..., Awaitable[Any]] = getattr(owner, name)

    async def wrapped(*args: Any, **options: Any) -> Any:
        await _pass(f"before {place}", before)
        result = await real(*args, **options)
        if result or not only_if_deleted:
            await _pass(f"after {place}", after)
        return result

    setattr(owner, name, wrapped)


def _wrap_commits() -> None:
    commit, apply = SqlStore.commit, apply_commits

    async def wrapped(self: SqlStore, commits: Sequence[ShardCommit]) -> None:
        settles = any(part.task_updates for part in commits)
        await _pass("before commit", _rejected)
        if settles:
            await _pass("before settling", _rejected)
        await commit(self, commits)
        await _pass("after commit", _unknown)
        if settles:
            await _pass("after settling", _unknown)

    def applied(connection: Any, commits: Sequence[ShardCommit]) -> None:
        apply(connection, commits)
        _pass_blocking("in transaction", _rejected)

    SqlStore.commit = wrapped  # type: ignore[method-assign]
    setattr(sql, "apply_commits", applied)  # noqa: B010  # where the store finds it


def _wrap_answers() -> None:
    real = binding._unary

    def unary(serve: Any, settle: Any, admit: Any, way: Any) -> Callable[..., Awaitable[Any]]:
        if serve is None or serve.__name__ not in HEARTBEATS:
            return real(serve, settle, admit, way)

        async def served(request: Any) -> Any:
            answer = await serve(request)
            await _pass("before ack", Unavailable)
            return answer

        call = real(served, settle, admit, way)

        async def answered(request: Any, context: Any) -> Any:
            answer = await call(request, context)
            context.add_done_callback(
                lambda _: _pass_blocking("after ack", lambda: RuntimeError("a failpoint"))
            )
            return answer

        return answered

    binding._unary = unary


def _sink_failed() -> Exception:
    return ConnectionError("a failpoint")


if __name__ == "__main__":
    _wrap_commits()
    _wrap_answers()
    _around(SqlStore, "compact_renewals", "compaction", _rejected, _unknown, only_if_deleted=True)
    _around(SqlStore, "prune_events", "retention", _rejected, _unknown, only_if_deleted=True)
    for sink in (WebhookSink, RelaySink):
        _around(sink, "offer", "publish", _sink_failed, _sink_failed)
    main(prog_name="liveness")
