"""The client for programs that schedule activities and follow their outcome.

client = Client("localhost:7400")
job = await client.schedule("resize", id="photo-17", input={"width": 200}, task_queue="resize")
done = await client.wait(job.ref)       # or: client.wait("photo-17", type="resize")

`Client(...).blocking` has the same methods for programs without an event loop.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar, overload

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from liveness.client_credentials import TLS, Token
from liveness.sdk.addresses import Addresses, format_addresses, parse_addresses
from liveness.sdk.connection import Connection, UnaryMethod, credentials_for
from liveness.sdk.converter import DEFAULT_CONVERTER, Converter, Payload, decode, encode, parse_json
from liveness.sdk.failover import ServerEndpoint
from liveness.sdk.metrics import (
    MetricSeries,
    metrics_error,
    report_metrics,
    report_request,
    series_from_proto,
)
from liveness.sdk.rpc_failures import RpcFailed, activity_error
from liveness.sdk.timeouts import Timeouts, timed_out_from_proto, timeouts_to_proto
from liveness.sdk.values import (
    RESTING_STATES,
    ActivityOrId,
    ActivityRef,
    ActivityState,
    RetryPolicy,
    id_to_proto,
    retry_policy_to_proto,
    state_from_proto,
    to_activity_ref,
    to_duration,
)
from liveness.v1 import activity_pb2, component_metrics_service_pb2

PAGE_MAX = 1_000
WAIT_BACKOFF_MS = (20, 1_000)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityInfo:
    """An activity as the server sees it."""

    ref: ActivityRef
    """With the number of the current or next attempt."""
    state: ActivityState
    type: str
    failures: int
    """Attempts that failed or ended because their worker died."""
    worker_deaths: int
    """Consecutive attempts whose worker died; the count is reset by an attempt that ends otherwise."""
    worker: str
    """While STARTED: the instance key of the worker that holds it."""
    since: datetime
    due: datetime | None
    """While WAITING: the time at which it becomes available."""
    last_failure: str
    input: bytes
    """As it is stored; empty in lists. So is the result."""
    result: bytes
    input_encoding: str = ""
    """How the input is encoded; empty if the client that scheduled it did not say. The result has its own."""
    result_encoding: str = ""
    timed_out: str = ""
    """The time limit that ended the last attempt, or the activity: "start_to_close", "heartbeat", "schedule_to_start" or
    "schedule_to_close"; empty if none did."""
    last_heartbeat: datetime | None = None
    """When the present attempt last called `task.progress`."""
    heartbeat_details: bytes = b""
    """As it is stored; shortened in lists. `details` decodes it."""
    heartbeat_details_encoding: str = ""
    converter: Converter = field(default=DEFAULT_CONVERTER, repr=False, compare=False)
    """The client's."""

    @property
    def id(self) -> str:
        return self.ref.workflow_id

    @property
    def resting(self) -> bool:
        """Whether the activity stays in its state unless an operator or another engine acts."""
        return self.state in RESTING_STATES

    @overload
    def value(self) -> Any: ...
    @overload
    def value(self, type_hint: builtins.type[T]) -> T: ...
    @overload
    def value(self, type_hint: Any) -> Any: ...
    def value(self, type_hint: Any = Any) -> Any:
        """The result as the handler returned it; with a type, as a value of that type. Raises NotConvertible if it is
        none."""
        return decode(self.converter, f"the result of {self.ref}", self._result_payload, type_hint)

    @overload
    def input_value(self) -> Any: ...
    @overload
    def input_value(self, type_hint: builtins.type[T]) -> T: ...
    @overload
    def input_value(self, type_hint: Any) -> Any: ...
    def input_value(self, type_hint: Any = Any) -> Any:
        """The input as it was scheduled, like `value`."""
        payload = Payload(self.input, self.input_encoding)
        return decode(self.converter, f"the input of {self.ref}", payload, type_hint)

    @overload
    def details(self) -> Any: ...
    @overload
    def details(self, type_hint: builtins.type[T]) -> T | None: ...
    @overload
    def details(self, type_hint: Any) -> Any: ...
    def details(self, type_hint: Any = Any) -> Any:
        """What the handler last said with `task.progress`, like `value`; None if it said nothing."""
        if not self.heartbeat_details and not self.heartbeat_details_encoding:
            return None
        payload = Payload(self.heartbeat_details, self.heartbeat_details_encoding)
        return decode(self.converter, f"the progress of {self.ref}", payload, type_hint)

    def json(self) -> Any:
        """The result, parsed as JSON; None if there is none."""
        return parse_json(self._result_payload)

    @property
    def _result_payload(self) -> Payload:
        return Payload(self.result, self.result_encoding)


class Scheduled(NamedTuple):
    ref: ActivityRef
    """For `describe`, `wait` and the others."""
    created: bool
    """False if the server knew the activity before."""
    state: ActivityState


class Client:
    def __init__(
        self,
        address: Addresses,
        *,
        namespace: str = "default",
        timeout: float = 10.0,
        converter: Converter = DEFAULT_CONVERTER,
        tls: bool | TLS | None = None,
        token: Token | None = None,
    ) -> None:
        """`address`: one node, or several nodes of one cluster: "a:7400,b:7400" or a list. `timeout`: seconds for which a
        call is tried again while no node can serve it. `converter`: encodes inputs and decodes results. `tls`: True, or a `TLS` with files; None: as
        the LIVENESS_TLS_* variables say. `token`: says who calls; a text, a `TokenFile`, or a function that returns it; None: the file
        that LIVENESS_TOKEN_FILE names."""
        self._converter = converter
        self._addresses = parse_addresses(address)
        self._credentials = credentials_for(self._addresses, tls, token)
        self._namespace = namespace
        self._timeout_ms = int(timeout * 1_000)
        self._connection: Connection | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release()

    @property
    def blocking(self) -> BlockingClient:
        return BlockingClient(self)

    async def schedule(
        self,
        type: str,  # noqa: A002  # the API's name for it
        *,
        id: ActivityOrId,
        input: object = None,  # noqa: A002  # the same
        task_queue: str = "",
        retry: RetryPolicy | None = None,
        delay: float | timedelta = 0,
        timeouts: Timeouts | None = None,
    ) -> Scheduled:
        """Schedule an activity. `input`: a JSON value, bytes, a dataclass, msgspec Struct or pydantic model, or whatever
        the client's converter knows; otherwise NotConvertible is raised. Scheduling the same activity again changes nothing; with different contents it raises
        ActivityDiffers."""
        ref = to_activity_ref(id, type)
        payload = encode(self._converter, f"the input of {ref}", input)
        request = activity_pb2.ScheduleActivityRequest(
            namespace=self._namespace,
            id=id_to_proto(ref),
            activity_type=type,
            task_queue=task_queue or ref.task_queue,
            input=payload.data,
            input_encoding=payload.encoding,
            retry_policy=retry_policy_to_proto(retry),
            start_delay=to_duration(delay) if delay else None,
            timeouts=timeouts_to_proto(timeouts),
        )
        answer = await self._call("ScheduleActivity", request, ref)
        return Scheduled(ref, answer.created, state_from_proto(answer.state))

    async def describe(self, id: ActivityOrId, *, type: str = "") -> ActivityInfo:  # noqa: A002  # the same
        ref = to_activity_ref(id, type)
        request = activity_pb2.DescribeActivityRequest(namespace=self._namespace, id=id_to_proto(ref))
        return self._activity_info((await self._call("DescribeActivity", request, ref)).activity)

    async def list(
        self,
        *,
        states: Sequence[ActivityState] = (),
        task_queue: str = "",
        worker: str = "",
        limit: int | None = None,
    ) -> list[ActivityInfo]:
        """The activities that meet every given condition, ordered by id."""
        found: list[ActivityInfo] = []
        request = activity_pb2.ListActivitiesRequest(
            namespace=self._namespace,
            filter=activity_pb2.ActivityFilter(
                states=[activity_pb2.ActivityState.Value(f"ACTIVITY_STATE_{state}") for state in states],
                task_queue=task_queue,
                worker_instance_key=worker,
            ),
        )
        while limit is None or len(found) < limit:
            request.page_size = min(PAGE_MAX, limit - len(found)) if limit is not None else PAGE_MAX
            page = await self._call("ListActivities", request, ActivityRef("-"))
            found.extend(map(self._activity_info, page.activities))
            request.page_token = page.next_page_token
            if not request.page_token:
                break
        return found

    async def cancel(self, id: ActivityOrId, *, type: str = "", reason: str = "") -> bool:  # noqa: A002
        """Cancel an activity for good. Returns whether a worker held it; that worker is told to stop."""
        ref = to_activity_ref(id, type)
        request = activity_pb2.CancelActivityRequest(
            namespace=self._namespace, id=id_to_proto(ref), reason=reason
        )
        return bool((await self._call("CancelActivity", request, ref)).was_held)

    async def retry(self, id: ActivityOrId, *, type: str = "") -> ActivityState:  # noqa: A002  # the same
        """Make a QUARANTINED or FAILED activity available again, with its failures reset."""
        ref = to_activity_ref(id, type)
        request = activity_pb2.RetryActivityRequest(namespace=self._namespace, id=id_to_proto(ref))
        return state_from_proto((await self._call("RetryActivity", request, ref)).state)

    async def wait(self, id: ActivityOrId, *, type: str = "") -> ActivityInfo:  # noqa: A002  # the same
        """Wait until the activity is finished, quarantined or handed on to another engine. Use `asyncio.timeout` to limit
        the wait."""
        wait_ms = WAIT_BACKOFF_MS[0]
        while not (info := await self.describe(id, type=type)).resting:
            await self._connect().clock.sleep(wait_ms * self._connect().random.uniform(0.75, 1))
            wait_ms = min(wait_ms * 3 // 2, WAIT_BACKOFF_MS[1])
        return info

    async def report_metrics(
        self,
        worker: str,
        gauges: Mapping[str, float] | None = None,
        *,
        counters: Mapping[str, float] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Report numbers about a component, like `Worker.metrics`. `worker`: its instance key; it need not be registered."""
        request = report_request(self._namespace, worker, gauges or {}, counters or {}, labels)
        await asyncio.wrap_future(report_metrics(self._connect(), request, self._timeout_ms / 1_000))

    async def query_metrics(
        self,
        *,
        worker: str = "",
        name: str = "",
        labels: Mapping[str, str] | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        step: float | timedelta | None = None,
    ) -> builtins.list[MetricSeries]:
        """The series that meet every given condition and have samples from `start`, an hour before the end, to `end`, now.
        `step`: seconds that one point stands for; None: so that a series has at most 300 points."""
        request = component_metrics_service_pb2.QueryMetricsRequest(
            namespace=self._namespace,
            worker_instance_key=worker,
            name=name,
            labels=labels or {},
            start_time=None if start is None else _to_timestamp(start),
            end_time=None if end is None else _to_timestamp(end),
            step=None if step is None else to_duration(step),
        )
        found: builtins.list[MetricSeries] = []
        while True:
            page = await self._query_metrics(request)
            found.extend(map(series_from_proto, page.series))
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token

    async def _query_metrics(self, request: component_metrics_service_pb2.QueryMetricsRequest) -> Any:
        connection = self._connect()
        outcome = connection.call(
            lambda endpoint: endpoint.metrics.QueryMetrics,
            request,
            timeout_s=connection.call_timeout_s(self._timeout_ms / 1_000),
            deadline_ms=connection.clock.monotonic_ms() + self._timeout_ms,
            should_retry=lambda rpc_failure: rpc_failure.is_retryable,
        )
        try:
            return await asyncio.wrap_future(outcome)
        except RpcFailed as error:
            address = format_addresses(self._addresses)
            raise metrics_error(error.rpc_failure, "QueryMetrics", address, self._namespace) from None

    def _activity_info(self, message: activity_pb2.Activity) -> ActivityInfo:
        names = message.id
        return ActivityInfo(
            ref=ActivityRef(
                names.workflow_id,
                names.run_id,
                names.activity_id,
                max(message.attempt, 1),
                message.task_queue,
                message.token,
            ),
            state=state_from_proto(message.state),
            type=message.activity_type,
            failures=message.failures,
            worker_deaths=message.worker_deaths,
            worker=message.worker_instance_key,
            since=_to_datetime(message.since),
            due=_to_datetime(message.due_time) if message.HasField("due_time") else None,
            last_failure=message.last_failure,
            input=message.input,
            result=message.result,
            input_encoding=message.input_encoding,
            result_encoding=message.result_encoding,
            timed_out=timed_out_from_proto(message.timeout_type),
            last_heartbeat=_to_datetime(message.last_heartbeat_time)
            if message.HasField("last_heartbeat_time")
            else None,
            heartbeat_details=message.heartbeat_details,
            heartbeat_details_encoding=message.heartbeat_details_encoding,
            converter=self._converter,
        )

    def _connect(self) -> Connection:
        if self._connection is None:
            self._connection = Connection.acquire(self._addresses, self._credentials)
        return self._connection

    async def _call(self, name: str, request: Message, ref: ActivityRef) -> Any:
        connection = self._connect()

        def select_method(endpoint: ServerEndpoint) -> UnaryMethod:
            method: UnaryMethod = getattr(endpoint.activities, name)
            return method

        # Every call may be repeated: the server answers a repeated one like the first.
        outcome = connection.call(
            select_method,
            request,
            timeout_s=connection.call_timeout_s(self._timeout_ms / 1_000),
            deadline_ms=connection.clock.monotonic_ms() + self._timeout_ms,
            should_retry=lambda rpc_failure: rpc_failure.is_retryable,
        )
        try:
            return await asyncio.wrap_future(outcome)
        except RpcFailed as rpc_error:
            error = activity_error(
                rpc_error.rpc_failure,
                name,
                ref,
                address=format_addresses(self._addresses),
                namespace=self._namespace,
            )
            raise error from None


class BlockingClient:
    """The methods of `Client` for programs without an event loop. They must not be called on an event loop."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def schedule(
        self,
        type: str,  # noqa: A002  # the API's name for it
        *,
        id: ActivityOrId,
        input: object = None,  # noqa: A002  # the same
        task_queue: str = "",
        retry: RetryPolicy | None = None,
        delay: float | timedelta = 0,
        timeouts: Timeouts | None = None,
    ) -> Scheduled:
        return _run(
            self._client.schedule(
                type, id=id, input=input, task_queue=task_queue, retry=retry, delay=delay, timeouts=timeouts
            )
        )

    def describe(self, id: ActivityOrId, *, type: str = "") -> ActivityInfo:  # noqa: A002  # the same
        return _run(self._client.describe(id, type=type))

    def list(
        self,
        *,
        states: Sequence[ActivityState] = (),
        task_queue: str = "",
        worker: str = "",
        limit: int | None = None,
    ) -> list[ActivityInfo]:
        return _run(self._client.list(states=states, task_queue=task_queue, worker=worker, limit=limit))

    def cancel(self, id: ActivityOrId, *, type: str = "", reason: str = "") -> bool:  # noqa: A002
        return _run(self._client.cancel(id, type=type, reason=reason))

    def retry(self, id: ActivityOrId, *, type: str = "") -> ActivityState:  # noqa: A002  # the same
        return _run(self._client.retry(id, type=type))

    def wait(
        self,
        id: ActivityOrId,
        *,
        type: str = "",  # noqa: A002  # the same
        timeout: float | None = None,
    ) -> ActivityInfo:
        """Raises TimeoutError after `timeout` seconds."""
        return _run(asyncio.wait_for(self._client.wait(id, type=type), timeout))

    def report_metrics(
        self,
        worker: str,
        gauges: Mapping[str, float] | None = None,
        *,
        counters: Mapping[str, float] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        _run(self._client.report_metrics(worker, gauges, counters=counters, labels=labels))

    def query_metrics(
        self,
        *,
        worker: str = "",
        name: str = "",
        labels: Mapping[str, str] | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        step: float | timedelta | None = None,
    ) -> builtins.list[MetricSeries]:
        return _run(
            self._client.query_metrics(
                worker=worker, name=name, labels=labels, start=start, end=end, step=step
            )
        )


def _run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def _to_timestamp(moment: datetime) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(moment.astimezone(UTC))
    return stamp


def _to_datetime(stamp: Timestamp) -> datetime:
    return stamp.ToDatetime(tzinfo=UTC)
