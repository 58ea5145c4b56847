"""Poll for activities and run their handlers, on the event loop that calls `run`."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from functools import partial
from threading import Thread
from typing import Any

import grpc

from liveness.sdk import rpc_failures
from liveness.sdk.activity_heartbeats import ActivityHeartbeats
from liveness.sdk.binding import WORKER_NOT_LIVE_REASONS
from liveness.sdk.connection import Connection, uncancellable_future
from liveness.sdk.converter import Converter, Payload, encode
from liveness.sdk.errors import ActivityLost, GiveUp, LivenessSdkError, Outcome
from liveness.sdk.failover import ServerEndpoint
from liveness.sdk.handlers import RegisteredHandler
from liveness.sdk.heartbeat_state import BACKOFF_MS
from liveness.sdk.held_attempt import CancelOnLoss, HeldAttempt, call_on_loop
from liveness.sdk.rpc_failures import RpcFailed, RpcFailure, worker_error
from liveness.sdk.session import WorkerSession
from liveness.sdk.task import OutcomeReporter, Stats, Task, failure_message
from liveness.sdk.values import ref_from_task, to_duration
from liveness.v1.activity_pb2 import ActivityTask, PollActivityRequest

POLL_WAIT_SECONDS = 20.0
POLL_MARGIN_SECONDS = 10.0
"""Added to the call's timeout, for the answer to arrive."""
POLL_ACTIVITIES_MAX = 100
RELEASE_TIMEOUT_MS = 5_000
RELEASE_ALL_SECONDS = 5.0
STOPPING_REASON = "the worker stops, and has handed it back"
# Orders, quota or rate forbid the poll for now; a later poll may succeed, and a heartbeat brings the current orders.
RETRY_LATER_REASONS = WORKER_NOT_LIVE_REASONS | {
    "WORKER_PAUSED",
    "WORKER_DRAINING",
    "BINDING_QUOTA_EXCEEDED",
    "RATE_LIMITED",
}
FATAL_REASONS = frozenset({"SESSION_SUPERSEDED", "WORKER_CLEANED_UP"})

log = logging.getLogger("liveness.sdk")


class Runner:
    def __init__(
        self,
        connection: Connection,
        session: WorkerSession,
        handlers: Mapping[str, RegisteredHandler],
        stats: Stats,
        converter: Converter,
        *,
        max_concurrent: int,
    ) -> None:
        """`handlers` by type; `wake` must be called after one was added."""
        self._connection = connection
        self._session = session
        self._handlers = handlers
        self._stats = stats
        self._converter = converter
        self._max_concurrent = max_concurrent
        self._reporter = OutcomeReporter(connection, session)
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._handler_tasks: set[asyncio.Task[None]] = set()
        self._poll: Any = None
        self._polled_types: tuple[str, ...] = ()
        self._poll_wait_ms = 0
        self._poll_failures = 0
        """Consecutive failures. Used on the scheduler's thread only."""
        self._poll_delay: asyncio.TimerHandle | None = None
        self._stopping = False
        self._reporting: set[asyncio.Task[None]] = set()
        """Handlers that have ended and whose outcome is being reported."""
        self.error: LivenessSdkError | None = None

    def wake(self) -> None:
        """Make `run` and `finish` check their conditions again. Any thread may call this."""
        call_on_loop(self._loop, self._changed.set)

    async def run(self, should_stop: Callable[[], bool]) -> None:
        """Poll for activities and run them until `should_stop()` returns True; it is called after each `wake`."""
        try:
            while not should_stop() and self.error is None and not self._session.has_ended:
                self._poll_if_free()
                await self._changed.wait()
                self._changed.clear()
        finally:
            self._stopping = True
            if self._poll_delay is not None:
                self._poll_delay.cancel()
            if self._poll is not None:
                self._poll.cancel()

    async def finish(self, time_left_s: Callable[[], float]) -> None:
        """Wait for running handlers, for at most `time_left_s()`, which is called again after each `wake`; then release the rest."""
        while (self._handler_tasks or self._poll is not None) and not self._session.has_ended:
            remaining_s = time_left_s()
            if remaining_s <= 0:
                break
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), remaining_s)
            except TimeoutError:
                pass
        await self.release_all()

    async def release_all(self) -> None:
        """Cancel all handlers, and release their activities at once."""
        for handler_task in self._handler_tasks - self._reporting:
            handler_task.cancel()
        if self._handler_tasks:
            await asyncio.wait(self._handler_tasks, timeout=RELEASE_ALL_SECONDS)

    # -- polling

    def _poll_if_free(self) -> None:
        session = self._session
        free_slots = self._max_concurrent - len(self._handler_tasks)
        types = tuple(self._handlers)
        if self._poll is not None:
            if not session.is_trusted() or types != self._polled_types:
                self._poll.cancel()
            return
        if (
            free_slots <= 0
            or not types  # a poll without types would be handed activities of every type
            or self._poll_delay is not None
            or session.orders.pause
            or not session.is_trusted()
        ):
            return
        request = PollActivityRequest(
            namespace=session.namespace,
            worker_instance_key=session.key,
            session_id=session.session_id,
            wait=to_duration(POLL_WAIT_SECONDS),
            max_activities=min(free_slots, POLL_ACTIVITIES_MAX),
            activity_types=types,
        )
        self._polled_types = types
        endpoint, poll = self._connection.endpoints.start_call(
            lambda endpoint: endpoint.activities.PollActivity.future(
                request, timeout=POLL_WAIT_SECONDS + POLL_MARGIN_SECONDS
            )
        )
        self._poll = poll
        poll.add_done_callback(
            lambda done: self._connection.scheduler.call_soon(partial(self._on_poll_reply, endpoint, done))
        )

    def _on_poll_reply(self, endpoint: ServerEndpoint, poll: Any) -> None:
        """Runs on the scheduler's thread, so that a blocked event loop does not delay the confirmation of activities."""
        if poll.code() is not grpc.StatusCode.OK:
            rpc_failure = rpc_failures.failure_of_call(poll)
            self._poll_failures += 1
            retry_now = self._connection.endpoints.report_failure(endpoint, rpc_failure, self._poll_failures)
            call_on_loop(self._loop, partial(self._on_poll_failed, rpc_failure, retry_now=retry_now))
            return
        self._poll_failures = 0
        self._connection.endpoints.mark_success(endpoint)
        tasks = []
        for message in poll.result().activities:
            held_attempt = self._session.accept_now(message)
            if held_attempt is None:
                self._stats.count(lost=1)
                log.warning("%s: %s came too late", self._session.key, ref_from_task(message))
            else:
                tasks.append((held_attempt, message))
        call_on_loop(self._loop, partial(self._start_tasks, tasks))

    def _on_poll_failed(self, rpc_failure: RpcFailure, *, retry_now: bool) -> None:
        self._poll = None
        self._changed.set()
        if self._stopping or retry_now:
            return
        if (
            rpc_failure.is_retryable
            or rpc_failure.reason in RETRY_LATER_REASONS
            or rpc_failure.reason in FATAL_REASONS
            or rpc_failure.code is grpc.StatusCode.UNAUTHENTICATED
        ):
            if (
                rpc_failure.reason in WORKER_NOT_LIVE_REASONS
                or rpc_failure.reason in FATAL_REASONS
                or rpc_failure.reason.startswith("WORKER_")
                # The heartbeat reads the token again, and ends the worker if that does not help.
                or rpc_failure.code is grpc.StatusCode.UNAUTHENTICATED
            ):
                self._session.send_heartbeat_now()
            self._poll_wait_ms = min(max(self._poll_wait_ms * 2, BACKOFF_MS[0]), BACKOFF_MS[1])
            wait_ms = max(
                rpc_failure.retry_after_ms, self._poll_wait_ms * self._connection.random.uniform(0.5, 1)
            )
            self._poll_delay = self._loop.call_later(wait_ms / 1_000, self._resume_polling)
            return
        self.error = worker_error(
            rpc_failure,
            "PollActivity",
            address=self._connection.address,
            namespace=self._session.namespace,
            worker=self._session.key,
        )

    def _resume_polling(self) -> None:
        self._poll_delay = None
        self._changed.set()

    def _start_tasks(self, tasks: list[tuple[HeldAttempt, ActivityTask]]) -> None:
        self._poll = None
        self._poll_wait_ms = 0
        for held_attempt, message in tasks:
            coroutine = (
                self._release(held_attempt)
                if self._stopping
                else self._run_task(held_attempt, self._task(held_attempt, message))
            )
            handler_task = self._loop.create_task(coroutine)
            self._handler_tasks.add(handler_task)
            handler_task.add_done_callback(self._on_task_done)
        self._changed.set()

    def _task(self, held_attempt: HeldAttempt, message: ActivityTask) -> Task:
        heartbeats = ActivityHeartbeats(self._connection, self._session, held_attempt, message)
        return Task(held_attempt, message, self._converter, heartbeats)

    def _on_task_done(self, handler_task: asyncio.Task[None]) -> None:
        self._handler_tasks.discard(handler_task)
        self._reporting.discard(handler_task)
        self._changed.set()

    # -- running handlers

    async def _run_task(self, held_attempt: HeldAttempt, task: Task) -> None:
        failure: BaseException | None = None
        result = Payload(b"")
        try:
            with CancelOnLoss(held_attempt):
                handler = self._handlers.get(task.type)
                if handler is None:
                    # A server that ignores the types in a poll, because it is older, handed it out.
                    failure = GiveUp(
                        f"this worker knows no activity type {task.type!r}, only {sorted(self._handlers)}"
                    )
                else:
                    result = encode(self._converter, "the result", await self._invoke(handler, task))
        except ActivityLost as lost:
            if held_attempt.lost.is_set():
                self._drop_lost(held_attempt)
                return
            failure = lost  # of another activity that the handler itself holds
        except asyncio.CancelledError as cancelled:
            if self._stopping:
                await self._release(held_attempt)
                return
            failure = cancelled
        except Outcome as outcome:
            log.info("%s: %s ended: %s", self._session.key, task, outcome)
            failure = outcome
        except Exception as error:
            log.warning("%s: %s failed", self._session.key, task, exc_info=True)
            failure = error
        self._reporting.add(self._current_task())
        await self._report(held_attempt, result, failure)

    def _current_task(self) -> asyncio.Task[None]:
        task = asyncio.current_task()
        assert task is not None
        return task

    async def _invoke(self, handler: RegisteredHandler, task: Task) -> object:
        call = partial(handler.function, *handler.arguments(task))
        if handler.is_coroutine_function:
            return await call()
        value = await asyncio.wrap_future(_run_in_thread(call, task.type))
        return await value if isinstance(value, Awaitable) else value

    async def _report(
        self, held_attempt: HeldAttempt, result: Payload, failure: BaseException | None
    ) -> None:
        call = (
            self._reporter.complete(held_attempt, result)
            if failure is None
            else self._reporter.fail(held_attempt, failure)
        )
        try:
            await asyncio.wrap_future(call)
        except RpcFailed as rpc_error:
            if (
                rpc_error.rpc_failure.reason not in ("FENCED_OFF", "ACTIVITY_FINISHED")
                and not held_attempt.lost.is_set()
            ):
                await self._on_report_rejected(held_attempt, failure, rpc_error.rpc_failure)
                return
            log.warning(
                "%s: the outcome of %s was refused: %s",
                self._session.key,
                held_attempt.ref,
                rpc_error.rpc_failure,
            )
            self._drop_lost(held_attempt)
        else:
            if failure is None:
                self._stats.count(completed=1)
                self._session.forget(held_attempt, succeeded=True)
            else:
                self._stats.count(failed=1)
                self._session.forget(held_attempt, succeeded=False, error=failure_message(failure))

    async def _on_report_rejected(
        self, held_attempt: HeldAttempt, failure: BaseException | None, rpc_failure: RpcFailure
    ) -> None:
        """The attempt is still held, but the server does not accept the outcome, for example because the result is too large."""
        if failure is None:
            # The result of the next attempt would be refused as well.
            await self._report(held_attempt, Payload(b""), GiveUp(f"the result was refused: {rpc_failure}"))
            return
        log.error("%s: the failure of %s was refused: %s", self._session.key, held_attempt.ref, rpc_failure)
        self._drop_lost(held_attempt)

    def _drop_lost(self, held_attempt: HeldAttempt) -> None:
        self._stats.count(lost=1)
        self._session.unbind(held_attempt)

    async def _release(self, held_attempt: HeldAttempt) -> None:
        held_attempt.lost.set(STOPPING_REASON)
        try:
            await asyncio.wrap_future(
                self._reporter.release(held_attempt.ref, held_attempt.epoch, RELEASE_TIMEOUT_MS)
            )
        except RpcFailed as rpc_error:
            log.debug(
                "%s: %s was not handed back: %s", self._session.key, held_attempt.ref, rpc_error.rpc_failure
            )
            self._drop_lost(held_attempt)
        else:
            self._stats.count(released=1)
            log.info("%s: handed back %s", self._session.key, held_attempt.ref)
            self._session.forget(held_attempt)


def _run_in_thread(call: Callable[[], Any], activity_type: str) -> Future[Any]:
    """Run a handler in a daemon thread, which does not keep a stopped process from exiting."""
    outcome: Future[Any] = uncancellable_future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            value = context.run(call)
        except BaseException as error:  # noqa: BLE001  # the coroutine that waits for the future raises it again
            outcome.set_exception(error)
        else:
            outcome.set_result(value)

    Thread(target=run, name=f"liveness-{activity_type}", daemon=True).start()
    return outcome
