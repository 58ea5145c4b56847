"""A server with failpoints: `python -m tests.crash.failing_server serve OPTIONS`, like `liveness serve`.

The file named by FAILPOINT in the environment holds `POINT|ACTION`. The server removes the file when it reaches that
point, and takes the action once:

    crash   the process kills itself, as by `kill -9`
    stop    the process stops itself, as by SIGSTOP
    error   the step fails, and its caller gets the error of such a failure
    delay   the step takes DELAY_MS longer

This module wraps only the calls to store, sinks and handlers, from outside. All other code is the product's.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import liveness.server.grpc_registration as binding
import liveness.store.sql as sql
from liveness.cli import main
from liveness.domain.errors import Unavailable
from liveness.integrations.relay.relay import RelaySink
from liveness.integrations.webhook.sink import WebhookSink
from liveness.server.heartbeat_lane import HeartbeatLane
from liveness.server.liveness_service import LivenessService
from liveness.server.unary_calls import UnaryMethod
from liveness.store.api import ShardCommit
from liveness.store.commit import apply_commits
from liveness.store.errors import CommitRejected, CommitUnknown
from liveness.store.sql import SqlStore

DELAY_MS = 1_300
"""Longer than the shortest lease."""
HEARTBEATS = {"record_worker_heartbeat", "record_worker_heartbeats"}

_control = Path(os.environ["FAILPOINT"])


def _armed_action(point: str) -> str | None:
    try:
        wanted, _, how = _control.read_text().partition("|")
        if wanted != point:
            return None
        _control.unlink()
    except FileNotFoundError:
        return None
    return how


def _rejected() -> Exception:
    return CommitRejected(detail="a failpoint")


def _unknown() -> Exception:
    return CommitUnknown(detail="a failpoint")


def _fail_if_armed(point: str, refusal: Callable[[], Exception]) -> bool:
    """Do what the armed failpoint says; return whether the step is to take longer."""
    match _armed_action(point):
        case "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "error":
            raise refusal()
        case "delay":
            return True
    return False


async def _reach(point: str, refusal: Callable[[], Exception]) -> None:
    if _fail_if_armed(point, refusal):
        await asyncio.sleep(DELAY_MS / 1_000)


def _reach_blocking(point: str, refusal: Callable[[], Exception]) -> None:
    if _fail_if_armed(point, refusal):
        time.sleep(DELAY_MS / 1_000)


def _wrap_method(
    owner: type, name: str, point: str, before: Any, after: Any, *, only_if_deleted: bool = False
) -> None:
    real: Callable[..., Awaitable[Any]] = getattr(owner, name)

    async def wrapped(*args: Any, **options: Any) -> Any:
        await _reach(f"before {point}", before)
        result = await real(*args, **options)
        if result or not only_if_deleted:
            await _reach(f"after {point}", after)
        return result

    setattr(owner, name, wrapped)


def _wrap_commits() -> None:
    commit, apply = SqlStore.commit, apply_commits

    async def wrapped(self: SqlStore, commits: Sequence[ShardCommit]) -> None:
        finishes_tasks = any(part.task_updates for part in commits)
        await _reach("before commit", _rejected)
        if finishes_tasks:
            await _reach("before settling", _rejected)
        await commit(self, commits)
        await _reach("after commit", _unknown)
        if finishes_tasks:
            await _reach("after settling", _unknown)

    def applied(connection: Any, commits: Sequence[ShardCommit]) -> None:
        apply(connection, commits)
        _reach_blocking("in transaction", _rejected)

    SqlStore.commit = wrapped  # type: ignore[method-assign]
    setattr(sql, "apply_commits", applied)  # noqa: B010  # the name through which the store calls it


def _wrap_answers() -> None:
    class FailingMethod(UnaryMethod):
        """Reaches failpoints around the answers to heartbeats that are served one by one, or in batches of the client's."""

        def __init__(self, serve: Any, *others: Any) -> None:
            async def served(request: Any) -> Any:
                answer = await serve(request)
                await _reach("before ack", Unavailable)
                return answer

            self._is_heartbeat = serve is not None and serve.__name__ in HEARTBEATS
            super().__init__(served if self._is_heartbeat else serve, *others)

        async def call(self, request: Any, context: Any) -> Any:
            answer = await super().call(request, context)
            if self._is_heartbeat:
                context.add_done_callback(lambda _: _reach_after_ack())
            return answer

    setattr(binding, "UnaryMethod", FailingMethod)  # noqa: B010  # the name through which methods are registered

    record = LivenessService.record_single_heartbeats

    async def recorded(self: Any, *arguments: Any) -> Any:
        answers = await record(self, *arguments)
        await _reach("before ack", Unavailable)
        return answers

    LivenessService.record_single_heartbeats = recorded  # type: ignore[assignment]

    answer = HeartbeatLane._answer

    def answered(self: HeartbeatLane, *arguments: Any, **options: Any) -> Any:
        left = answer(self, *arguments, **options)
        asyncio.get_running_loop().call_soon(
            _reach_after_ack
        )  # after the turn in which the edge is given the answers
        return left

    HeartbeatLane._answer = answered  # type: ignore[method-assign]


def _reach_after_ack() -> None:
    _reach_blocking("after ack", lambda: RuntimeError("a failpoint"))


def _sink_failed() -> Exception:
    return ConnectionError("a failpoint")


if __name__ == "__main__":
    _wrap_commits()
    _wrap_answers()
    _wrap_method(SqlStore, "compact_renewals", "compaction", _rejected, _unknown, only_if_deleted=True)
    _wrap_method(SqlStore, "prune_events", "retention", _rejected, _unknown, only_if_deleted=True)
    for sink in (WebhookSink, RelaySink):
        _wrap_method(sink, "deliver", "publish", _sink_failed, _sink_failed)
    main(prog_name="liveness")
