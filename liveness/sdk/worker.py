"""`Worker`: the context manager that a worker program enters."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from secrets import token_hex
from threading import current_thread, main_thread
from types import FrameType, TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from liveness.client_credentials import TLS, Token, connect_failure_hint
from liveness.sdk import health
from liveness.sdk.addresses import Addresses, find_addresses, find_namespace, format_addresses
from liveness.sdk.binding import Binding, Claim
from liveness.sdk.component_environment import ComponentEnvironment, give_session_back, take_session
from liveness.sdk.connection import Connection, credentials_for
from liveness.sdk.converter import DEFAULT_CONVERTER, Converter
from liveness.sdk.errors import InvalidArgument, ServerAway, VersionMismatch, WorkerStopped
from liveness.sdk.handlers import HANDLERS_MAX, Handler, RegisteredHandler, inspect_handler
from liveness.sdk.held_attempt import call_on_loop
from liveness.sdk.loop_lag import LoopLagProbe
from liveness.sdk.metrics import report_metrics, report_request
from liveness.sdk.progress_reporter import ProgressReporter
from liveness.sdk.rpc_failures import API_LEVEL, RpcFailed, RpcFailure, worker_error
from liveness.sdk.runner import Runner
from liveness.sdk.self_report import check_report
from liveness.sdk.session import WorkerSession
from liveness.sdk.task import Stats
from liveness.sdk.timeouts import Timeouts
from liveness.sdk.values import ActivityOrId, RetryPolicy, duration_to_ms, to_activity_ref, to_duration
from liveness.sdk.worker_info import WorkerStatus
from liveness.v1.service_pb2 import GetServerInfoRequest, GetServerInfoResponse, ShutdownWorkerRequest
from liveness.v1.worker_pb2 import WORKER_STATUS_RUNNING, WORKER_STATUS_STOPPING, WorkerHeartbeat
from liveness.version import VERSION

SDK_NAME = "liveness-python"
SHUTDOWN_TIMEOUT_SECONDS = 5.0
STOP_MARGIN_SECONDS = 1.0
"""Time for bodies to stop after they were told to."""
REASON_TIMEOUT_SECONDS = 0.25
PROGRAM_ENDED = "its program has ended"
SIGNALS = (signal.SIGTERM, signal.SIGINT)

log = logging.getLogger("liveness.sdk")

HandlerT = TypeVar("HandlerT", bound=Handler)


class _WaitStep(NamedTuple):
    """One step of starting or stopping: wait for `future`, but at most for `seconds`. The next step checks whether it is done."""

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
        address: Addresses | None = None,
        *,
        namespace: str | None = None,
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
        converter: Converter = DEFAULT_CONVERTER,
        tls: bool | TLS | None = None,
        token: Token | None = None,
    ) -> None:
        """`address`: one node, or several nodes of one cluster: "a:7400,b:7400" or a list; the worker uses one of them and
        fails over when it does not answer; None: LIVENESS_ADDRESS, or 127.0.0.1:7400. `namespace`: None: LIVENESS_NAMESPACE, or default. `instance_key`: unique per process; generated if None, and that of the component in a
        process that `liveness supervise` runs. `lease`: seconds for
        which the worker counts as alive after each heartbeat; None uses the namespace's default. `disconnect_grace`:
        seconds for which its connection may be gone before the lease ends; None for as long as the lease. `stop_timeout`:
        seconds for which handlers may continue after the worker is told to stop. `converter`: decodes inputs and encodes
        results. `tls`: True, or a `TLS` with files; None: as
        the LIVENESS_TLS_* variables say. `token`: says who calls; a text, a `TokenFile`, or a function that returns it; None: the file
        that LIVENESS_TOKEN_FILE names."""
        if max_concurrent < 1:
            raise InvalidArgument(detail="max_concurrent must be at least 1.")
        self._addresses = find_addresses(address)
        self._address = format_addresses(self._addresses)
        self._credentials = credentials_for(self._addresses, tls, token)
        self._namespace = find_namespace(namespace)
        self._configured_key = instance_key
        self._lease = lease
        self._grace_ms = (
            None if disconnect_grace is None else max(duration_to_ms(to_duration(disconnect_grace)), 1)
        )
        self._max_concurrent = max_concurrent
        self._stop_timeout = stop_timeout
        self._start_timeout = start_timeout
        self._profile = WorkerHeartbeat(
            worker_instance_key=instance_key or "",
            lease_duration=None if lease is None else to_duration(lease),
            status=WORKER_STATUS_RUNNING,
            worker_identity=identity,
            task_queue=task_queue,
            build_id=build_id,
            sdk_name=SDK_NAME,
            sdk_version=VERSION,
            host_name=socket.gethostname(),
            process_id=str(os.getpid()),
            labels=labels or {},
            capabilities=capabilities,
        )
        self._converter = converter
        self._handlers: dict[str, RegisteredHandler] = {}
        self._stats = Stats()
        self._connection: Connection | None = None
        self._session: WorkerSession | None = None
        self._progress: ProgressReporter | None = None
        self._lag_probe: LoopLagProbe | None = None
        self._runner: Runner | None = None
        self._stop_reason = ""
        self._stop_at_once = False
        self._component: ComponentEnvironment | None = None

    # -- starting and stopping

    async def __aenter__(self) -> Self:
        await _run_steps(self._start_steps())
        self._start_lag_probe()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _run_steps(self._stop_steps(self._stop_timeout))

    def __enter__(self) -> Self:
        _run_steps_blocking(self._start_steps())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _run_steps_blocking(self._stop_steps(self._stop_timeout))

    # -- state

    @property
    def instance_key(self) -> str:
        """The current key. A generated key changes if the server cleans the worker up."""
        return self._live_session().key

    @property
    def namespace(self) -> str:
        return self._namespace

    @property
    def lease_epoch(self) -> int:
        return self._live_session().heartbeat_state.epoch

    @property
    def paused(self) -> bool:
        """Whether an operator paused the worker: it gets no new activities until it is resumed."""
        return self._live_session().orders.pause

    @property
    def draining(self) -> bool:
        """Whether an operator drains the worker: it ends when it has finished its activities. Known after its end, too."""
        return self._session is not None and self._session.orders.drain

    @property
    def stats(self) -> Stats:
        return self._stats

    # -- work

    def activity(self, activity_type: str) -> Callable[[HandlerT], HandlerT]:
        """Register the decorated function as the handler of this activity type. Coroutine functions run on the event loop,
        other functions in a thread. The worker is handed activities of registered types only.

        `handler(task)` gets the task. `handler(task, photo: Photo)` gets the input as well, as a value of the annotated
        type; an input that is none fails the activity for good, and so does a result that cannot be encoded."""
        caller = inspect.currentframe()
        local_names = {} if caller is None or caller.f_back is None else dict(caller.f_back.f_locals)

        def register(handler: HandlerT) -> HandlerT:
            if activity_type in self._handlers:
                raise InvalidArgument(detail=f"activity type {activity_type!r} has a handler already.")
            if len(self._handlers) >= HANDLERS_MAX:
                raise InvalidArgument(detail=f"a worker has at most {HANDLERS_MAX} handlers.")
            self._handlers[activity_type] = inspect_handler(handler, local_names)
            if self._runner is not None:
                self._runner.wake()
            return handler

        return register

    def bind(self, activity: ActivityOrId) -> Binding:
        """Hold an activity of the program's own engine: `async with worker.bind(ref) as binding`."""
        return Binding(self._live_session(), to_activity_ref(activity))

    def claim(
        self,
        activity: ActivityOrId,
        *,
        type: str = "",  # noqa: A002  # the API's name for it
        input: object = None,  # noqa: A002  # the same
        retry: RetryPolicy | None = None,
        timeouts: Timeouts | None = None,
    ) -> Claim:
        """Take an activity that the program found by itself: `async with worker.claim("photo-17") as task`. Raises
        ActivityHeld if another worker holds it, and ActivityFinished if it is done."""
        session = self._live_session()
        assert self._connection is not None
        ref = to_activity_ref(activity, type)
        return Claim(
            self._connection,
            session,
            self._stats,
            ref,
            activity_type=type,
            content=input,
            retry=retry,
            timeouts=timeouts,
            converter=self._converter,
        )

    async def metrics(
        self,
        gauges: Mapping[str, float] | None = None,
        *,
        counters: Mapping[str, float] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Report numbers about this worker, by name: `await worker.metrics({"queue_depth": 17})`. Returns when they are
        durable. `counters`: totals that only rise, from the start of the process. `labels`: of all of them; each combination
        of values is a series, of which a worker may have 200. Raises QuotaReached if it has more."""
        await asyncio.wrap_future(self._report_metrics(gauges or {}, counters or {}, labels))

    def metrics_blocking(
        self,
        gauges: Mapping[str, float] | None = None,
        *,
        counters: Mapping[str, float] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """`metrics` for programs without an event loop."""
        self._report_metrics(gauges or {}, counters or {}, labels).result()

    def _report_metrics(
        self, gauges: Mapping[str, float], counters: Mapping[str, float], labels: Mapping[str, str] | None
    ) -> Future[None]:
        key = self._live_session().key
        assert self._connection is not None
        return report_metrics(
            self._connection, report_request(self._namespace, key, gauges, counters, labels)
        )

    def progress(self, unit: str, *, successes: int = 0, error: str = "") -> None:
        """Add to the totals of a unit of work, such as a table or a file, which any number of workers may share: successes, and one
        error if its text is not empty.

        Returns at once, on the event loop and in threads alike. The report is sent in the background, again after a failure, and
        counted once. While the server is away, up to 1,000 reports wait; those of one unit are joined."""
        self._live_session()
        assert self._progress is not None
        self._progress.report(unit, successes, error)

    def report(
        self,
        *,
        successes: int = 0,
        errors: int = 0,
        last_error: str = "",
        status: WorkerStatus | None = None,
        current_job: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Say how this worker is: add to its counters, and set what it says about itself. What is not given stays; an empty
        `current_job` and empty `labels` remove what was said.

        Returns at once, on the event loop and in threads alike. The next heartbeat tells it: a change of status, job or labels within
        a moment, counters when one is due. Activities that this worker runs are counted without it."""
        session = self._live_session()
        change = check_report(
            self._profile,
            successes,
            errors,
            last_error,
            status=status,
            current_job=current_job,
            labels=labels,
        )
        if change is not None:
            session.describe(change)
        if successes or errors or last_error:
            session.count(successes=successes, errors=errors, last_error=last_error)

    async def run(self, *, handle_signals: bool = True) -> None:
        """Poll the task queue and run its activities until the worker is stopped: by SIGTERM or SIGINT, by `stop()`, or by
        an operator's drain. Running handlers may then continue for `stop_timeout`; the worker releases the rest. A second
        signal ends that wait."""
        session = self._live_session()
        assert self._connection is not None
        if self._runner is not None:
            raise InvalidArgument(detail="this worker runs already.")
        if self._lag_probe is None:
            self._start_lag_probe()
        runner = self._runner = Runner(
            self._connection,
            session,
            self._handlers,
            self._stats,
            self._converter,
            max_concurrent=self._max_concurrent,
        )
        unsubscribe = session.subscribe(runner.wake)
        try:
            with self._signal_handling(handle_signals):
                try:
                    await runner.run(self._should_stop)
                    session.describe(_say_stopping)
                    time_left_s = self._stop_time_left(session)
                    await runner.finish(time_left_s)
                except asyncio.CancelledError:
                    await runner.release_all()
                    raise
        finally:
            unsubscribe()
            self._runner = None
        error = session.error or runner.error
        await _run_steps(self._stop_steps(max(time_left_s(), 0)))
        if error is not None:
            raise error

    def run_blocking(self, *, handle_signals: bool = True) -> None:
        """`run` for programs without an event loop."""
        asyncio.run(self.run(handle_signals=handle_signals))

    def stop(self, reason: str = "stopped by its program") -> None:
        """Make `run` end gracefully. Any thread may call this."""
        self._stop_reason = self._stop_reason or reason
        if self._runner is not None:
            self._runner.wake()

    # -- steps of starting and stopping

    def _live_session(self) -> WorkerSession:
        session = self._session
        if session is None or session.has_ended:
            raise (session.error if session is not None else None) or WorkerStopped(
                worker=self._configured_key or self._profile.task_queue or "(without a key)"
            )
        return session

    def _start_steps(self) -> Iterator[_WaitStep]:
        if self._connection is not None:
            raise InvalidArgument(detail="a worker is for one `with` only; make another.")
        connection = self._connection = Connection.acquire(self._addresses, self._credentials)
        try:
            yield from self._register(connection)
        except BaseException:
            if self._session is not None:
                self._session.stop()
            self._give_component_back()
            connection.release()
            self._connection = None
            raise

    def _register(self, connection: Connection) -> Iterator[_WaitStep]:
        deadline_ms = connection.clock.monotonic_ms() + int(self._start_timeout * 1_000)
        server_info = connection.call(
            lambda endpoint: endpoint.liveness.GetServerInfo,
            GetServerInfoRequest(namespace=self._namespace),
            timeout_s=self._start_timeout / len(connection.endpoints),
            # With several nodes, a missing node is no reason to wait: the next one is tried.
            wait_for_ready=len(connection.endpoints) == 1,
            should_retry=lambda rpc_failure: (
                rpc_failure.is_retryable and connection.clock.monotonic_ms() < deadline_ms
            ),
        )
        yield _WaitStep(server_info, self._start_timeout + STOP_MARGIN_SECONDS)
        if _has_timed_out(server_info):
            # The call waited for a connection. One that does not wait fails with the reason why there is none.
            server_info = connection.call(
                lambda endpoint: endpoint.liveness.GetServerInfo,
                GetServerInfoRequest(namespace=self._namespace),
                timeout_s=REASON_TIMEOUT_SECONDS,
            )
            yield _WaitStep(server_info, STOP_MARGIN_SECONDS)
        self._check_server(server_info)
        wall_ms = connection.clock.wall_ms()
        self._profile.start_time.CopyFrom(
            Timestamp(seconds=wall_ms // 1_000, nanos=wall_ms % 1_000 * 1_000_000)
        )
        if self._configured_key is None:
            self._take_component()
        make_key = None if self._configured_key is not None else _generate_key
        session = self._session = WorkerSession(
            connection, self._namespace, self._profile, make_key, self._grace_ms, self._component
        )
        self._progress = ProgressReporter(connection, self._namespace, lambda: session.key)
        started = session.start()
        remaining_s = max(deadline_ms - connection.clock.monotonic_ms(), 0) / 1_000 + STOP_MARGIN_SECONDS
        yield _WaitStep(started, remaining_s)
        if not started.done():
            raise ServerAway(address=self._address, detail="the first heartbeat was not answered")
        started.result()

    def _take_component(self) -> None:
        """In a supervised process, continue the session of the component: what this worker holds is rescheduled at once when the
        supervisor sees the process die. The supervisor sends no heartbeats for it meanwhile."""
        component = take_session(self._namespace)
        if component is None:
            return
        health.report_sdk(True)
        if not health.start():
            health.report_sdk(False)
            give_session_back()
            return
        self._component = component
        profile = self._profile
        profile.task_queue = profile.task_queue or component.task_queue
        profile.build_id = profile.build_id or component.build_id
        for name, label in component.labels.items():
            profile.labels[name] = label
        if self._lease is None and component.lease_s:
            profile.lease_duration.CopyFrom(to_duration(component.lease_s))

    def _give_component_back(self) -> None:
        if self._component is not None:
            self._component = None
            health.report_sdk(False)
            give_session_back()

    def _check_server(self, server_info: Future[GetServerInfoResponse]) -> None:
        error = server_info.exception() if server_info.done() else None
        if isinstance(error, RpcFailed):
            rpc_failure = error.rpc_failure
            if rpc_failure.is_retryable:
                raise ServerAway(address=self._address, detail=self._connect_failure(rpc_failure))
            raise worker_error(
                rpc_failure, "GetServerInfo", address=self._address, namespace=self._namespace, worker=""
            )
        if not server_info.done():
            raise ServerAway(address=self._address, detail="GetServerInfo was not answered")
        info = server_info.result()
        if not info.api_level_min <= API_LEVEL <= info.api_level:
            detail = (
                f"it is version {info.version} and speaks levels {info.api_level_min} to {info.api_level}."
            )
            raise VersionMismatch(level=API_LEVEL, address=self._address, detail=detail)

    def _connect_failure(self, rpc_failure: RpcFailure) -> str:
        uses_tls = self._credentials.tls is not None
        return connect_failure_hint(rpc_failure.message, uses_tls=uses_tls) or str(rpc_failure)

    def _stop_steps(self, timeout_s: float) -> Iterator[_WaitStep]:
        session, connection = self._session, self._connection
        if session is None or connection is None:
            return
        try:
            if not session.has_ended:
                session.describe(_say_stopping)
                yield _WaitStep(session.when_empty(), timeout_s)
                session.cancel_all("the worker has stopped")
                yield _WaitStep(session.when_empty(), STOP_MARGIN_SECONDS)
                assert self._progress is not None
                yield _WaitStep(self._progress.flush(), SHUTDOWN_TIMEOUT_SECONDS)
                # A heartbeat that arrived after ShutdownWorker would make the worker active again.
                yield _WaitStep(session.flush(), SHUTDOWN_TIMEOUT_SECONDS)
                session.stop()
                if self._component is None:  # a component goes on; its supervisor says when it ends
                    yield _WaitStep(self._shut_down(connection, session), SHUTDOWN_TIMEOUT_SECONDS)
                log.info("worker %s has stopped: %s", session.key, self._stop_reason or PROGRAM_ENDED)
        finally:
            session.stop()
            self._give_component_back()
            if self._lag_probe is not None:
                self._lag_probe.stop()
            self._connection = None
            connection.release()

    def _shut_down(self, connection: Connection, session: WorkerSession) -> Future[Any]:
        deadline_ms = connection.clock.monotonic_ms() + int(SHUTDOWN_TIMEOUT_SECONDS * 1_000)
        return connection.call(
            lambda endpoint: endpoint.liveness.ShutdownWorker,
            ShutdownWorkerRequest(
                namespace=self._namespace,
                worker_instance_key=session.key,
                session_id=session.session_id,
                reason=self._stop_reason or PROGRAM_ENDED,
            ),
            timeout_s=connection.call_timeout_s(SHUTDOWN_TIMEOUT_SECONDS),
            should_retry=lambda rpc_failure: (
                rpc_failure.is_retryable and connection.clock.monotonic_ms() < deadline_ms
            ),
        )

    def _start_lag_probe(self) -> None:
        assert self._connection is not None
        assert self._session is not None
        self._lag_probe = LoopLagProbe(
            self._connection.scheduler, asyncio.get_running_loop(), self._session.observe_lag
        )

    def _should_stop(self) -> bool:
        return bool(self._stop_reason) or (self._session is not None and self._session.orders.drain)

    def _stop_time_left(self, session: WorkerSession) -> Callable[[], float]:
        """A function that returns the seconds for which handlers may still run, counted from now."""
        assert self._connection is not None
        clock = self._connection.clock
        started_ms = clock.monotonic_ms()

        def remaining_s() -> float:
            if self._stop_at_once:
                return 0.0
            limit_ms = int(self._stop_timeout * 1_000)
            if session.orders.drain and session.orders.drain_limit_ms is not None and not self._stop_reason:
                limit_ms = session.orders.drain_limit_ms
            return (started_ms + limit_ms - clock.monotonic_ms()) / 1_000

        return remaining_s

    @contextmanager
    def _signal_handling(self, enabled: bool) -> Iterator[None]:
        """Stop the worker on SIGTERM and SIGINT while `run` runs; restore the previous handlers afterwards."""
        if not enabled or current_thread() is not main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        previous_handlers = {number: signal.getsignal(number) for number in SIGNALS}
        for number in SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            yield
        finally:
            for number, handler in previous_handlers.items():
                loop.remove_signal_handler(number)
                signal.signal(number, _handler_or_default(handler))

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stop_reason:
            self._stop_at_once = True
        self.stop(f"it got {number.name}")


def _has_timed_out(server_info: Future[GetServerInfoResponse]) -> bool:
    error = server_info.exception() if server_info.done() else None
    return isinstance(error, RpcFailed) and error.rpc_failure.code is grpc.StatusCode.DEADLINE_EXCEEDED


def _handler_or_default(
    handler: Callable[[int, FrameType | None], Any] | int | signal.Handlers | None,
) -> Callable[[int, FrameType | None], Any] | int | signal.Handlers:
    """Replace None, which stands for a handler that was not installed from Python and cannot be restored."""
    return signal.SIG_DFL if handler is None else handler


def _say_stopping(heartbeat: WorkerHeartbeat) -> None:
    heartbeat.status = WORKER_STATUS_STOPPING


def _generate_key() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{token_hex(4)}"


async def _run_steps(steps: Iterator[_WaitStep]) -> None:
    loop = asyncio.get_running_loop()
    try:
        for future, seconds in steps:
            done = asyncio.Event()
            future.add_done_callback(partial(_on_future_done, loop, done))
            try:
                await asyncio.wait_for(done.wait(), seconds)
            except TimeoutError:
                pass
    finally:
        _close_steps(steps)


def _on_future_done(loop: asyncio.AbstractEventLoop, done: asyncio.Event, _: Future[Any]) -> None:
    call_on_loop(loop, done.set)


def _run_steps_blocking(steps: Iterator[_WaitStep]) -> None:
    try:
        for future, seconds in steps:
            concurrent.futures.wait([future], seconds)
    finally:
        _close_steps(steps)


def _close_steps(steps: Iterator[_WaitStep]) -> None:
    """Run the cleanup of the steps after an interrupted wait."""
    close: Callable[[], None] = steps.close  # type: ignore[attr-defined]  # they are generators
    close()
