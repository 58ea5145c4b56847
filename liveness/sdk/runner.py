"""Polls for activities and runs their handlers, on the event loop that calls `run`."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from functools import partial
from threading import Thread
from typing import Any, TypeAlias

import grpc

from liveness.sdk import refusals
from liveness.sdk.binding import NOT_LIVE
from liveness.sdk.connection import Connection, promise
from liveness.sdk.errors import ActivityLost, LivenessSdkError, Outcome
from liveness.sdk.failover import Route
from liveness.sdk.holding import CancelledOnLoss, Hold, on_loop
from liveness.sdk.life import Life
from liveness.sdk.pulse import BACKOFF_MS
from liveness.sdk.refusals import Refusal, Refused, worker_error
from liveness.sdk.task import Endings, Stats, Task, told
from liveness.sdk.values import duration, payload, ref_of_task
from liveness.v1.activity_pb2 import ActivityTask, PollActivityRequest

POLL_SECONDS = 20.0
POLL_SECONDS_MORE = 10.0
"""On top, for the answer to come."""
POLL_ACTIVITIES_MAX = 100
RELEASE_MS = 5_000
HAND_BACK_SECONDS = 5.0
STOPPING = "the worker stops, and has handed it back"
# The worker's orders or quota stand against it, which a heartbeat will tell or time will mend.
NOT_NOW = NOT_LIVE | {"WORKER_PAUSED", "WORKER_DRAINING", "BINDING_QUOTA_EXCEEDED", "RATE_LIMITED"}
DOOMED = frozenset({"SESSION_SUPERSEDED", "WORKER_CLEANED_UP"})

log = logging.getLogger("liveness.sdk")

Handler: TypeAlias = Callable[[Task], Any]


class Runner:
    def __init__(
        self,
        connection: Connection,
        life: Life,
        handlers: Mapping[str, Handler],
        stats: Stats,
        *,
        max_concurrent: int,
    ) -> None:
        self._connection = connection
        self._life = life
        self._handlers = handlers
        self._stats = stats
        self._max_concurrent = max_concurrent
        self._endings = Endings(connection, life)
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._bodies: set[asyncio.Task[None]] = set()
        self._poll: Any = None
        self._poll_wait_ms = 0
        self._poll_failures = 0
        """In a row. Touched on the ticker's thread."""
        self._poll_pause: asyncio.TimerHandle | None = None
        self._stopping = False
        self._reporting: set[asyncio.Task[None]] = set()
        """Bodies that have ended, and whose outcome is on its way."""
        self.error: LivenessSdkError | None = None

    def wake(self) -> None:
        """From any thread: look again at what is to be done."""
        on_loop(self._loop, self._changed.set)

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Take up and run activities until `is_over()`; look at that after each `wake`."""
        try:
            while not is_over() and self.error is None and not self._life.ended:
                self._poll_if_free()
                await self._changed.wait()
                self._changed.clear()
        finally:
            self._stopping = True
            if self._poll_pause is not None:
                self._poll_pause.cancel()
            if self._poll is not None:
                self._poll.cancel()

    async def finish(self, limit_s: Callable[[], float]) -> None:
        """Wait for the bodies for at most `limit_s()`, asked anew after each `wake`; then hand back what is left."""
        while (self._bodies or self._poll is not None) and not self._life.ended:
            remaining_s = limit_s()
            if remaining_s <= 0:
                break
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), remaining_s)
            except TimeoutError:
                pass
        await self.hand_back()

    async def hand_back(self) -> None:
        """At once."""
        for body in self._bodies - self._reporting:
            body.cancel()
        if self._bodies:
            await asyncio.wait(self._bodies, timeout=HAND_BACK_SECONDS)

    # -- polling

    def _poll_if_free(self) -> None:
        life = self._life
        free = self._max_concurrent - len(self._bodies)
        if self._poll is not None:
            if not life.is_trusted():
                self._poll.cancel()
            return
        if free <= 0 or self._poll_pause is not None or life.orders.pause or not life.is_trusted():
            return
        request = PollActivityRequest(
            namespace=life.namespace,
            worker_instance_key=life.key,
            session_id=life.session_id,
            wait=duration(POLL_SECONDS),
            max_activities=min(free, POLL_ACTIVITIES_MAX),
        )
        route, poll = self._connection.routes.begin(
            lambda route: route.activities.PollActivity.future(
                request, timeout=POLL_SECONDS + POLL_SECONDS_MORE
            )
        )
        self._poll = poll
        poll.add_done_callback(lambda done: self._connection.ticker.post(partial(self._arrived, route, done)))

    def _arrived(self, route: Route, poll: Any) -> None:
        """On the ticker's thread, so that a frozen event loop does not keep the worker from confirming."""
        if poll.code() is not grpc.StatusCode.OK:
            refusal = refusals.of_call(poll)
            self._poll_failures += 1
            at_once = self._connection.routes.failed(route, refusal, self._poll_failures)
            on_loop(self._loop, partial(self._poll_refused, refusal, at_once=at_once))
            return
        self._poll_failures = 0
        self._connection.routes.worked(route)
        tasks = []
        for message in poll.result().activities:
            hold = self._life.adopt_now(message)
            if hold is None:
                self._stats.count(lost=1)
                log.warning("%s: %s came too late", self._life.key, ref_of_task(message))
            else:
                tasks.append((hold, message))
        on_loop(self._loop, partial(self._take_up, tasks))

    def _poll_refused(self, refusal: Refusal, *, at_once: bool) -> None:
        self._poll = None
        self._changed.set()
        if self._stopping or at_once:
            return
        if refusal.passing or refusal.reason in NOT_NOW or refusal.reason in DOOMED:
            if refusal.reason in NOT_LIVE or refusal.reason in DOOMED or refusal.reason.startswith("WORKER_"):
                self._life.beat_now()
            self._poll_wait_ms = min(max(self._poll_wait_ms * 2, BACKOFF_MS[0]), BACKOFF_MS[1])
            wait_ms = max(
                refusal.retry_after_ms, self._poll_wait_ms * self._connection.random.uniform(0.5, 1)
            )
            self._poll_pause = self._loop.call_later(wait_ms / 1_000, self._poll_again)
            return
        self.error = worker_error(
            refusal,
            "PollActivity",
            address=self._connection.address,
            namespace=self._life.namespace,
            worker=self._life.key,
        )

    def _poll_again(self) -> None:
        self._poll_pause = None
        self._changed.set()

    def _take_up(self, tasks: list[tuple[Hold, ActivityTask]]) -> None:
        self._poll = None
        self._poll_wait_ms = 0
        for hold, message in tasks:
            work = self._give_back(hold) if self._stopping else self._work(hold, Task(hold, message))
            body = self._loop.create_task(work)
            self._bodies.add(body)
            body.add_done_callback(self._ended)
        self._changed.set()

    def _ended(self, body: asyncio.Task[None]) -> None:
        self._bodies.discard(body)
        self._reporting.discard(body)
        self._changed.set()

    # -- working

    async def _work(self, hold: Hold, task: Task) -> None:
        failure: BaseException | str | None = None
        result = b""
        try:
            with CancelledOnLoss(hold):
                handler = self._handlers.get(task.type)
                if handler is None:
                    failure = (
                        f"this worker knows no activity type {task.type!r}, only {sorted(self._handlers)}"
                    )
                else:
                    result = payload(await self._invoke(handler, task))
        except ActivityLost as lost:
            if hold.lost.is_set():
                self._gave_up(hold)
                return
            failure = lost  # of some other activity, by the handler's own doing
        except asyncio.CancelledError as cancelled:
            if self._stopping:
                await self._give_back(hold)
                return
            failure = cancelled
        except Outcome as outcome:
            log.info("%s: %s ended: %s", self._life.key, task, outcome)
            failure = outcome
        except Exception as error:
            log.warning("%s: %s failed", self._life.key, task, exc_info=True)
            failure = error
        self._reporting.add(self._me())
        await self._report(hold, result, failure)

    def _me(self) -> asyncio.Task[None]:
        me = asyncio.current_task()
        assert me is not None
        return me

    async def _invoke(self, handler: Handler, task: Task) -> object:
        if inspect.iscoroutinefunction(handler):
            return await handler(task)
        value = await asyncio.wrap_future(_in_thread(handler, task))
        return await value if isinstance(value, Awaitable) else value

    async def _report(self, hold: Hold, result: bytes, failure: BaseException | str | None) -> None:
        call = self._endings.complete(hold, result) if failure is None else self._endings.fail(hold, failure)
        try:
            await asyncio.wrap_future(call)
        except Refused as refused:
            if refused.refusal.reason not in ("FENCED_OFF", "ACTIVITY_FINISHED") and not hold.lost.is_set():
                await self._refused(hold, failure, refused.refusal)
                return
            log.warning("%s: the outcome of %s was refused: %s", self._life.key, hold.ref, refused.refusal)
            self._gave_up(hold)
        else:
            if failure is None:
                self._stats.count(completed=1)
                self._life.forget(hold, succeeded=True)
            else:
                self._stats.count(failed=1)
                self._life.forget(hold, succeeded=False, error=told(failure))

    async def _refused(self, hold: Hold, failure: BaseException | str | None, refusal: Refusal) -> None:
        """Not because the attempt is lost: the outcome itself is not acceptable, a result that is too large, say."""
        if failure is None:
            await self._report(hold, b"", f"the result was refused: {refusal}")
            return
        log.error("%s: the failure of %s was refused: %s", self._life.key, hold.ref, refusal)
        self._gave_up(hold)

    def _gave_up(self, hold: Hold) -> None:
        self._stats.count(lost=1)
        self._life.end(hold)

    async def _give_back(self, hold: Hold) -> None:
        hold.lost.set(STOPPING)
        try:
            await asyncio.wrap_future(self._endings.release(hold.ref, hold.epoch, RELEASE_MS))
        except Refused as refused:
            log.debug("%s: %s was not handed back: %s", self._life.key, hold.ref, refused.refusal)
            self._gave_up(hold)
        else:
            self._stats.count(released=1)
            self._life.forget(hold)


def _in_thread(handler: Handler, task: Task) -> Future[Any]:
    """A thread of its own, one that does not keep a stopped process from ending."""
    outcome: Future[Any] = promise()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            value = context.run(handler, task)
        except BaseException as error:  # noqa: BLE001  # it is raised again where the thread was started
            outcome.set_exception(error)
        else:
            outcome.set_result(value)

    Thread(target=run, name=f"liveness-{task.type}", daemon=True).start()
    return outcome
