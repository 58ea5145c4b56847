"""The worker: what a program enters, and all it needs to know."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from importlib.metadata import version
from secrets import token_hex
from threading import current_thread, main_thread
from types import FrameType, TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from google.protobuf.timestamp_pb2 import Timestamp

from liveness.sdk.addresses import Addresses, addresses_of, said
from liveness.sdk.binding import Binding, Claim
from liveness.sdk.connection import Connection
from liveness.sdk.errors import InvalidArgument, ServerAway, VersionMismatch, WorkerStopped
from liveness.sdk.holding import on_loop
from liveness.sdk.lag import LoopWatch
from liveness.sdk.life import Life
from liveness.sdk.refusals import API_LEVEL, Refused, worker_error
from liveness.sdk.runner import Handler, Runner
from liveness.sdk.task import Stats
from liveness.sdk.values import Named, RetryPolicy, duration, ms_of, named
from liveness.v1.service_pb2 import GetServerInfoRequest, GetServerInfoResponse, ShutdownWorkerRequest
from liveness.v1.worker_pb2 import WORKER_STATUS_RUNNING, WorkerHeartbeat

SDK_NAME = "liveness-python"
GOODBYE_SECONDS = 5.0
LAST_WORDS_SECONDS = 1.0
"""For bodies that were told to stop, to do so."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)

log = logging.getLogger("liveness.sdk")

HandlerT = TypeVar("HandlerT", bound=Handler)


class _Wait(NamedTuple):
    """A step of starting or ending: wait for this, but not longer. Whether it came is for the next step to see."""

    future: Future[Any]
    seconds: float


class Worker:
    """A worker of one server, alive while its `with` lasts.

        async with Worker("localhost:7400", task_queue="resize") as worker:

            @worker.activity("resize")
            async def resize(task): ...

            await worker.run()

    `with Worker(...)` is the same for programs without an event loop; there it is `worker.run_blocking()`."""

    def __init__(
        self,
        address: Addresses,
        *,
        namespace: str = "default",
        task_queue: str = "",
        instance_key: str | None = None,
        lease: float | timedelta | None = None,
        disconnect_grace: float | timedelta | None = 5.0,
        max_concurrent: int = 10,
        stop_timeout: float = 10.0,
        start_timeout: float = 10.0,
        labels: Mapping[str, str] | None = None,
        build_id: str = "",
        identity: str = "",
        capabilities: Sequence[str] = (),
    ) -> None:
        """`address`: of one node, or of several that serve the same: "a:7400,b:7400" or a list; the worker stands on one
        of them and moves on when that one fails. `instance_key`: unique per process; made up if None. `lease`: for how long, in seconds, the worker counts as
        alive after each heartbeat; None leaves it to the namespace. `disconnect_grace`: how long its connection may be
        gone before the lease ends; None for as long as the lease. `stop_timeout`: how long bodies may go on once the
        worker is told to stop."""
        if max_concurrent < 1:
            raise InvalidArgument(detail="max_concurrent must be at least 1.")
        self._addresses = addresses_of(address)
        self._address = said(self._addresses)
        self._namespace = namespace
        self._chosen_key = instance_key
        self._lease = lease
        self._grace_ms = None if disconnect_grace is None else max(ms_of(duration(disconnect_grace)), 1)
        self._max_concurrent = max_concurrent
        self._stop_timeout = stop_timeout
        self._start_timeout = start_timeout
        self._profile = WorkerHeartbeat(
            worker_instance_key=instance_key or "",
            lease_duration=None if lease is None else duration(lease),
            status=WORKER_STATUS_RUNNING,
            worker_identity=identity,
            task_queue=task_queue,
            build_id=build_id,
            sdk_name=SDK_NAME,
            sdk_version=version("liveness"),
            host_name=socket.gethostname(),
            process_id=str(os.getpid()),
            labels=labels or {},
            capabilities=capabilities,
        )
        self._handlers: dict[str, Handler] = {}
        self._stats = Stats()
        self._connection: Connection | None = None
        self._life: Life | None = None
        self._watch: LoopWatch | None = None
        self._runner: Runner | None = None
        self._stop_reason = ""
        self._hurry = False

    # -- life

    async def __aenter__(self) -> Self:
        await _follow(self._start())
        self._watch_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _follow(self._end(self._stop_timeout))

    def __enter__(self) -> Self:
        _follow_blocking(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _follow_blocking(self._end(self._stop_timeout))

    # -- what it is

    @property
    def instance_key(self) -> str:
        """The current one: if it was made up, it changes should the worker be cleaned up."""
        return self._alive().key

    @property
    def namespace(self) -> str:
        return self._namespace

    @property
    def lease_epoch(self) -> int:
        return self._alive().pulse.epoch

    @property
    def paused(self) -> bool:
        """By order of an operator: it is handed nothing new until it is resumed."""
        return self._alive().orders.pause

    @property
    def draining(self) -> bool:
        """By order of an operator: it is to end when it has finished what it has."""
        return self._alive().orders.drain

    @property
    def stats(self) -> Stats:
        return self._stats

    # -- work

    def activity(self, activity_type: str) -> Callable[[HandlerT], HandlerT]:
        """Let the decorated function do activities of this type: a coroutine function on the event loop, any other in a
        thread."""

        def register(handler: HandlerT) -> HandlerT:
            if activity_type in self._handlers:
                raise InvalidArgument(detail=f"activity type {activity_type!r} has a handler already.")
            self._handlers[activity_type] = handler
            return handler

        return register

    def bind(self, activity: Named) -> Binding:
        """Hold an activity of the program's own engine: `async with worker.bind(ref) as binding`."""
        return Binding(self._alive(), named(activity))

    def claim(
        self,
        activity: Named,
        *,
        type: str = "",  # noqa: A002  # what it is called everywhere
        input: object = b"",  # noqa: A002  # the same
        retry: RetryPolicy | None = None,
    ) -> Claim:
        """Take an activity that the program found by itself: `async with worker.claim("photo-17") as task`. Raises
        ActivityHeld or ActivityFinished if it is somebody else's, or done."""
        life = self._alive()
        assert self._connection is not None
        ref = named(activity, type)
        return Claim(self._connection, life, self._stats, ref, activity_type=type, content=input, retry=retry)

    async def run(self, *, handle_signals: bool = True) -> None:
        """Take up activities of the task queue and run them, until the worker is stopped: by SIGTERM or SIGINT, by
        `stop()`, or by order of an operator. What runs then may go on for `stop_timeout`; what is left is handed back.
        A second signal cuts that short."""
        life = self._alive()
        assert self._connection is not None
        if self._runner is not None:
            raise InvalidArgument(detail="this worker runs already.")
        if self._watch is None:
            self._watch_loop()
        runner = self._runner = Runner(
            self._connection, life, self._handlers, self._stats, max_concurrent=self._max_concurrent
        )
        deaf = life.listen(runner.wake)
        try:
            with self._signals(handle_signals):
                try:
                    await runner.run(self._is_over)
                    limit_s = self._time_left(life)
                    await runner.finish(limit_s)
                except asyncio.CancelledError:
                    await runner.hand_back()
                    raise
        finally:
            deaf()
            self._runner = None
        error = life.error or runner.error
        await _follow(self._end(max(limit_s(), 0)))
        if error is not None:
            raise error

    def run_blocking(self, *, handle_signals: bool = True) -> None:
        """`run` for programs without an event loop."""
        asyncio.run(self.run(handle_signals=handle_signals))

    def stop(self, reason: str = "stopped by its program") -> None:
        """Let `run` end, gracefully. From any thread."""
        self._stop_reason = self._stop_reason or reason
        if self._runner is not None:
            self._runner.wake()

    # -- inside

    def _alive(self) -> Life:
        life = self._life
        if life is None or life.ended:
            raise (life.error if life is not None else None) or WorkerStopped(
                worker=self._chosen_key or self._profile.task_queue or "(without a key)"
            )
        return life

    def _start(self) -> Iterator[_Wait]:
        if self._connection is not None:
            raise InvalidArgument(detail="a worker is for one `with` only; make another.")
        connection = self._connection = Connection.to(self._addresses)
        try:
            yield from self._begin(connection)
        except BaseException:
            if self._life is not None:
                self._life.leave()
            connection.release()
            self._connection = None
            raise

    def _begin(self, connection: Connection) -> Iterator[_Wait]:
        until_ms = connection.clock.monotonic_ms() + int(self._start_timeout * 1_000)
        asked = connection.call(
            lambda route: route.liveness.GetServerInfo,
            GetServerInfoRequest(namespace=self._namespace),
            timeout_s=self._start_timeout / len(connection.routes),
            # Of several nodes, one that is not there is no reason to wait.
            wait_for_ready=len(connection.routes) == 1,
            again=lambda refusal: refusal.passing and connection.clock.monotonic_ms() < until_ms,
        )
        yield _Wait(asked, self._start_timeout + LAST_WORDS_SECONDS)
        self._check_server(asked)
        wall_ms = connection.clock.wall_ms()
        self._profile.start_time.CopyFrom(
            Timestamp(seconds=wall_ms // 1_000, nanos=wall_ms % 1_000 * 1_000_000)
        )
        new_key = None if self._chosen_key is not None else _made_up_key
        life = self._life = Life(connection, self._namespace, self._profile, new_key, self._grace_ms)
        started = life.begin()
        left_s = max(until_ms - connection.clock.monotonic_ms(), 0) / 1_000 + LAST_WORDS_SECONDS
        yield _Wait(started, left_s)
        if not started.done():
            raise ServerAway(address=self._address, detail="the first heartbeat was not answered")
        started.result()

    def _check_server(self, asked: Future[GetServerInfoResponse]) -> None:
        error = asked.exception() if asked.done() else None
        if isinstance(error, Refused):
            refusal = error.refusal
            if refusal.passing:
                raise ServerAway(address=self._address, detail=refusal)
            raise worker_error(
                refusal, "GetServerInfo", address=self._address, namespace=self._namespace, worker=""
            )
        if not asked.done():
            raise ServerAway(address=self._address, detail="GetServerInfo was not answered")
        info = asked.result()
        if not info.api_level_min <= API_LEVEL <= info.api_level:
            detail = (
                f"it is version {info.version} and speaks levels {info.api_level_min} to {info.api_level}."
            )
            raise VersionMismatch(level=API_LEVEL, address=self._address, detail=detail)

    def _end(self, timeout_s: float) -> Iterator[_Wait]:
        life, connection = self._life, self._connection
        if life is None or connection is None:
            return
        try:
            if not life.ended:
                yield _Wait(life.emptied(), timeout_s)
                life.give_up_all("the worker has stopped")
                yield _Wait(life.emptied(), LAST_WORDS_SECONDS)
                # A heartbeat that arrived after the goodbye would bring the worker back to life.
                yield _Wait(life.settle(), GOODBYE_SECONDS)
                life.leave()
                yield _Wait(self._goodbye(connection, life), GOODBYE_SECONDS)
        finally:
            life.leave()
            if self._watch is not None:
                self._watch.stop()
            self._connection = None
            connection.release()

    def _goodbye(self, connection: Connection, life: Life) -> Future[Any]:
        until_ms = connection.clock.monotonic_ms() + int(GOODBYE_SECONDS * 1_000)
        return connection.call(
            lambda route: route.liveness.ShutdownWorker,
            ShutdownWorkerRequest(
                namespace=self._namespace,
                worker_instance_key=life.key,
                session_id=life.session_id,
                reason=self._stop_reason or "its program has ended",
            ),
            timeout_s=connection.patience_s(GOODBYE_SECONDS),
            again=lambda refusal: refusal.passing and connection.clock.monotonic_ms() < until_ms,
        )

    def _watch_loop(self) -> None:
        assert self._connection is not None
        assert self._life is not None
        self._watch = LoopWatch(self._connection.ticker, asyncio.get_running_loop(), self._life.observe_lag)

    def _is_over(self) -> bool:
        return bool(self._stop_reason) or (self._life is not None and self._life.orders.drain)

    def _time_left(self, life: Life) -> Callable[[], float]:
        """How long bodies may still go on, counted from now."""
        assert self._connection is not None
        clock = self._connection.clock
        began_ms = clock.monotonic_ms()

        def left_s() -> float:
            if self._hurry:
                return 0.0
            limit_ms = int(self._stop_timeout * 1_000)
            if life.orders.drain and life.orders.drain_limit_ms is not None and not self._stop_reason:
                limit_ms = life.orders.drain_limit_ms
            return (began_ms + limit_ms - clock.monotonic_ms()) / 1_000

        return left_s

    @contextmanager
    def _signals(self, wanted: bool) -> Iterator[None]:
        """SIGTERM and SIGINT stop the worker while `run` runs; afterwards they do what they did before."""
        if not wanted or current_thread() is not main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in SIGNALS}
        for number in SIGNALS:
            loop.add_signal_handler(number, self._signalled, number)
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, _or_default(handler))

    def _signalled(self, number: signal.Signals) -> None:
        if self._stop_reason:
            self._hurry = True
        self.stop(f"it got {number.name}")


def _or_default(
    handler: Callable[[int, FrameType | None], Any] | int | signal.Handlers | None,
) -> Callable[[int, FrameType | None], Any] | int | signal.Handlers:
    """None stands for a handler that was not installed from Python, and cannot be put back."""
    return signal.SIG_DFL if handler is None else handler


def _made_up_key() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{token_hex(4)}"


async def _follow(steps: Iterator[_Wait]) -> None:
    loop = asyncio.get_running_loop()
    try:
        for future, seconds in steps:
            done = asyncio.Event()
            future.add_done_callback(partial(_noticed, loop, done))
            try:
                await asyncio.wait_for(done.wait(), seconds)
            except TimeoutError:
                pass
    finally:
        _close(steps)


def _noticed(loop: asyncio.AbstractEventLoop, done: asyncio.Event, _: Future[Any]) -> None:
    on_loop(loop, done.set)


def _follow_blocking(steps: Iterator[_Wait]) -> None:
    try:
        for future, seconds in steps:
            concurrent.futures.wait([future], seconds)
    finally:
        _close(steps)


def _close(steps: Iterator[_Wait]) -> None:
    """Whoever was interrupted while waiting still puts things in order."""
    close: Callable[[], None] = steps.close  # type: ignore[attr-defined]  # they are generators
    close()
