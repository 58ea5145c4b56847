"""`BlockingClient`: the methods of `Client` for programs without an event loop. Generated from client.py; never edited."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta
from math import inf
from types import TracebackType
from typing import Any, Self, TypeVar, overload
from uuid import uuid4

from google.protobuf.message import Message

from liveness.client_credentials import TLS, Token
from liveness.sdk.activity_info import ActivityInfo, AttemptInfo, LimitInfo
from liveness.sdk.addresses import Addresses, find_addresses, find_namespace, format_addresses
from liveness.sdk.connection import Connection, SelectMethod, credentials_for
from liveness.sdk.converter import DEFAULT_CONVERTER, Converter, encode
from liveness.sdk.errors import ActivityFailed, InvalidArgument, LivenessSdkError
from liveness.sdk.event_feed import EventFeed
from liveness.sdk.metrics import (
    MetricSeries,
    metrics_error,
    report_metrics,
    report_request,
    series_from_proto,
)
from liveness.sdk.rpc_failures import RpcFailed, RpcFailure, activity_error, client_error
from liveness.sdk.schedules import (
    Schedule,
    ScheduleInfo,
    activity_ref,
    schedule_error,
    schedule_to_proto,
)
from liveness.sdk.timeouts import Priority, Timeouts, priority_to_proto, timeouts_to_proto
from liveness.sdk.values import (
    ActivityOrId,
    ActivityRef,
    ActivityState,
    RetryPolicy,
    id_to_proto,
    retry_policy_to_proto,
    state_from_proto,
    time_to_proto,
    to_activity_ref,
    to_duration,
)
from liveness.sdk.waiting import result_of_blocking
from liveness.sdk.worker_info import Death, LivenessEvent, WorkerInfo, WorkerState, worker_filter
from liveness.v1 import (
    activity_pb2,
    admin_pb2,
    component_metrics_service_pb2,
    schedule_service_pb2,
    service_pb2,
)

PAGE_MAX = 1_000
WAIT_BACKOFF_MS = (20, 1_000)

T = TypeVar("T")


class BlockingActivityHandle:
    """An activity that this program scheduled, or wants to follow."""

    def __init__(
        self, client: BlockingClient, ref: ActivityRef, *, created: bool, state: ActivityState
    ) -> None:
        self._client = client
        self.ref = ref
        """For `describe`, `wait` and the others of the client."""
        self.created = created
        """False if the server knew the activity before."""
        self.state = state
        """When it was scheduled. `describe` tells the present one."""

    def __repr__(self) -> str:
        return f"<BlockingActivityHandle {self.ref}>"

    @property
    def id(self) -> str:
        return self.ref.workflow_id

    @overload
    def result(self, *, timeout: float | None = None) -> Any: ...
    @overload
    def result(self, type_hint: builtins.type[T], *, timeout: float | None = None) -> T: ...
    @overload
    def result(self, type_hint: Any, *, timeout: float | None = None) -> Any: ...
    def result(self, type_hint: Any = Any, *, timeout: float | None = None) -> Any:
        """Wait until the activity is completed, and return what its handler returned; with a type, as a value of that type.
        Raises ActivityFailed if it ended in another way, and TimeoutError after `timeout` seconds."""
        info = self._client.wait(self.ref, timeout=timeout)
        if info.state is not ActivityState.COMPLETED:
            raise ActivityFailed(
                activity=info.ref, state=info.state, detail=info.last_failure or "no reason is known."
            )
        return info.value(type_hint)

    def describe(self) -> ActivityInfo:
        return self._client.describe(self.ref)

    def cancel(self, *, reason: str = "") -> bool:
        """Cancel the activity for good. Returns whether a worker held it; that worker is told to stop."""
        return self._client.cancel(self.ref, reason=reason)

    def retry(self) -> ActivityState:
        """Make it available again if it is QUARANTINED or FAILED, with its failures reset."""
        return self._client.retry(self.ref)


class BlockingSchedules:
    """The schedules of the client's namespace: `client.schedules`."""

    def __init__(self, client: BlockingClient) -> None:
        self._client = client

    def create(self, id: str, schedule: Schedule) -> ScheduleInfo:  # the API's name for it
        """Create a schedule. The same one again changes nothing; one that differs raises ScheduleExists."""
        request = schedule_service_pb2.CreateScheduleRequest(
            namespace=self._client.namespace,
            schedule_id=id,
            spec=schedule_to_proto(self._client.converter, id, schedule),
        )
        return ScheduleInfo.from_proto((self._client.schedule_call("CreateSchedule", request)).schedule)

    def update(self, id: str, schedule: Schedule) -> ScheduleInfo:  # the same
        """Replace all that a schedule says. It continues with the first tick after now."""
        request = schedule_service_pb2.UpdateScheduleRequest(
            namespace=self._client.namespace,
            schedule_id=id,
            spec=schedule_to_proto(self._client.converter, id, schedule),
        )
        return ScheduleInfo.from_proto((self._client.schedule_call("UpdateSchedule", request)).schedule)

    def get(self, id: str) -> ScheduleInfo:  # the same
        """One schedule, with its next and last firings. Raises ScheduleUnknown if there is none."""
        request = schedule_service_pb2.GetScheduleRequest(namespace=self._client.namespace, schedule_id=id)
        return ScheduleInfo.from_proto((self._client.schedule_call("GetSchedule", request)).schedule)

    def list(self, *, prefix: str = "", limit: int | None = None) -> builtins.list[ScheduleInfo]:
        """BlockingSchedules whose ids begin with `prefix`, ordered by id."""
        found: builtins.list[ScheduleInfo] = []
        request = schedule_service_pb2.ListSchedulesRequest(namespace=self._client.namespace, prefix=prefix)
        while limit is None or len(found) < limit:
            request.page_size = min(PAGE_MAX, limit - len(found)) if limit is not None else PAGE_MAX
            page = self._client.schedule_call("ListSchedules", request)
            found.extend(map(ScheduleInfo.from_proto, page.schedules))
            request.page_token = page.next_page_token
            if not request.page_token:
                break
        return found

    def pause(self, id: str, *, reason: str = "") -> bool:  # the same
        """Let it not fire until it is resumed. Returns False if it was paused already."""
        request = schedule_service_pb2.PauseScheduleRequest(
            namespace=self._client.namespace, schedule_id=id, reason=reason
        )
        return bool((self._client.schedule_call("PauseSchedule", request)).changed)

    def resume(self, id: str, *, reason: str = "") -> bool:  # the same
        """Continue with the first tick after now. Returns False if it was not paused."""
        request = schedule_service_pb2.ResumeScheduleRequest(
            namespace=self._client.namespace, schedule_id=id, reason=reason
        )
        return bool((self._client.schedule_call("ResumeSchedule", request)).changed)

    def trigger(self, id: str, *, trigger_id: str = "") -> BlockingActivityHandle:  # the same
        """Fire now, beside the ticks. `trigger_id`: the same one fires once, however often this is called."""
        request = schedule_service_pb2.TriggerScheduleRequest(
            namespace=self._client.namespace, schedule_id=id, trigger_id=trigger_id or uuid4().hex
        )
        answer = self._client.schedule_call("TriggerSchedule", request)
        return BlockingActivityHandle(
            self._client, activity_ref(answer.id), created=answer.created, state=ActivityState.AVAILABLE
        )

    def delete(self, id: str, *, reason: str = "") -> None:  # the same
        """Delete a schedule. Activities that it has scheduled stay as they are."""
        request = schedule_service_pb2.DeleteScheduleRequest(
            namespace=self._client.namespace, schedule_id=id, reason=reason
        )
        self._client.schedule_call("DeleteSchedule", request)


class BlockingClient:
    def __init__(
        self,
        address: Addresses | None = None,
        *,
        namespace: str | None = None,
        timeout: float = 10.0,
        converter: Converter = DEFAULT_CONVERTER,
        tls: bool | TLS | None = None,
        token: Token | None = None,
    ) -> None:
        """`address`: one node, or several nodes of one cluster: "a:7400,b:7400" or a list; None: LIVENESS_ADDRESS, or
        127.0.0.1:7400. `namespace`: None: LIVENESS_NAMESPACE, or default. `timeout`: seconds for which a call is tried
        again while no node can serve it. `converter`: encodes inputs and decodes results. `tls`: True, or a `TLS` with
        files; None: as the LIVENESS_TLS_* variables say. `token`: says who calls; a text, a `TokenFile`, or a function
        that returns it; None: the file that LIVENESS_TOKEN_FILE names."""
        self._converter = converter
        self._addresses = find_addresses(address)
        self._credentials = credentials_for(self._addresses, tls, token)
        self._namespace = find_namespace(namespace)
        self._timeout_ms = int(timeout * 1_000)
        self._connection: Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release()

    @property
    def namespace(self) -> str:
        return self._namespace

    @property
    def converter(self) -> Converter:
        return self._converter

    @property
    def schedules(self) -> BlockingSchedules:
        """Activities that are scheduled again and again."""
        return BlockingSchedules(self)

    # -- activities

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
        start: datetime | None = None,
        priority: Priority | None = None,
    ) -> BlockingActivityHandle:
        """Schedule an activity. `input`: a JSON value, bytes, a dataclass, msgspec Struct or pydantic model, or whatever
        the client's converter knows; otherwise NotConvertible is raised. Scheduling the same activity again changes nothing; with different contents it raises
        ActivityDiffers. `start`: when it becomes available, by wall clock; with a time zone."""
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
            start_time=None if start is None else time_to_proto(start),
            priority=priority_to_proto(priority),
        )
        answer = self._activity_call("ScheduleActivity", request, ref)
        return BlockingActivityHandle(self, ref, created=answer.created, state=state_from_proto(answer.state))

    def handle(self, id: ActivityOrId, *, type: str = "") -> BlockingActivityHandle:  # noqa: A002  # the same
        """The handle of an activity that was scheduled before. Raises ActivityUnknown if there is none."""
        info = self.describe(id, type=type)
        return BlockingActivityHandle(self, to_activity_ref(id, type), created=False, state=info.state)

    def describe(self, id: ActivityOrId, *, type: str = "") -> ActivityInfo:  # noqa: A002  # the same
        ref = to_activity_ref(id, type)
        request = activity_pb2.DescribeActivityRequest(namespace=self._namespace, id=id_to_proto(ref))
        answer = self._activity_call("DescribeActivity", request, ref)
        return ActivityInfo.from_proto(answer.activity, self._converter)

    def list(
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
            page = self._activity_call("ListActivities", request, ActivityRef("-"))
            found.extend(ActivityInfo.from_proto(message, self._converter) for message in page.activities)
            request.page_token = page.next_page_token
            if not request.page_token:
                break
        return found

    def set_limit(self, workflow_id: str, maximum: int, *, reason: str = "") -> LimitInfo:
        """At most `maximum` activities of a workflow run at once from now on. What runs already goes on."""
        request = activity_pb2.SetConcurrencyLimitRequest(
            namespace=self._namespace, workflow_id=workflow_id, maximum=maximum, reason=reason
        )
        answer = self._activity_call("SetConcurrencyLimit", request, ActivityRef(workflow_id))
        return LimitInfo.from_proto(answer.limit)

    def remove_limit(self, workflow_id: str, *, reason: str = "") -> None:
        """Let any number of activities of a workflow run at once."""
        request = activity_pb2.RemoveConcurrencyLimitRequest(
            namespace=self._namespace, workflow_id=workflow_id, reason=reason
        )
        self._activity_call("RemoveConcurrencyLimit", request, ActivityRef(workflow_id))

    def limits(self, *, prefix: str = "") -> builtins.list[LimitInfo]:
        """The concurrency limits of workflows whose ids begin with `prefix`, ordered by id."""
        found: builtins.list[LimitInfo] = []
        request = activity_pb2.ListConcurrencyLimitsRequest(
            namespace=self._namespace, prefix=prefix, page_size=PAGE_MAX
        )
        while True:
            page = self._activity_call("ListConcurrencyLimits", request, ActivityRef("-"))
            found.extend(map(LimitInfo.from_proto, page.limits))
            request.page_token = page.next_page_token
            if not request.page_token:
                return found

    def attempts(self, id: ActivityOrId, *, type: str = "") -> builtins.list[AttemptInfo]:  # noqa: A002  # the same
        """Every attempt of an activity, oldest first, as far as the server keeps events."""
        ref = to_activity_ref(id, type)
        request = activity_pb2.GetActivityHistoryRequest(namespace=self._namespace, id=id_to_proto(ref))
        answer = self._activity_call("GetActivityHistory", request, ref)
        return [AttemptInfo.from_proto(attempt) for attempt in answer.attempts]

    def cancel(self, id: ActivityOrId, *, type: str = "", reason: str = "") -> bool:  # noqa: A002
        """Cancel an activity for good. Returns whether a worker held it; that worker is told to stop."""
        ref = to_activity_ref(id, type)
        request = activity_pb2.CancelActivityRequest(
            namespace=self._namespace, id=id_to_proto(ref), reason=reason
        )
        return bool((self._activity_call("CancelActivity", request, ref)).was_held)

    def retry(self, id: ActivityOrId, *, type: str = "") -> ActivityState:  # noqa: A002  # the same
        """Make a QUARANTINED or FAILED activity available again, with its failures reset."""
        ref = to_activity_ref(id, type)
        request = activity_pb2.RetryActivityRequest(namespace=self._namespace, id=id_to_proto(ref))
        return state_from_proto((self._activity_call("RetryActivity", request, ref)).state)

    def wait(
        self,
        id: ActivityOrId,
        *,
        type: str = "",  # noqa: A002  # the same
        timeout: float | None = None,
    ) -> ActivityInfo:
        """Wait until the activity is finished, quarantined or handed on to another engine. Raises TimeoutError after `timeout`
        seconds."""
        connection, ref = self._connect(), to_activity_ref(id, type)
        end_ms = inf if timeout is None else connection.clock.monotonic_ms() + timeout * 1_000
        wait_ms: float = WAIT_BACKOFF_MS[0]
        while not (info := self.describe(ref)).resting:
            left_ms = end_ms - connection.clock.monotonic_ms()
            if left_ms <= 0:
                raise TimeoutError(f"{ref} is still {info.state} after {timeout} s")
            pause_ms = min(wait_ms * connection.random.uniform(0.75, 1), left_ms)
            result_of_blocking(connection.sleep(pause_ms))
            wait_ms = min(wait_ms * 1.5, WAIT_BACKOFF_MS[1])
        return info

    # -- workers

    def workers(
        self,
        *,
        states: Sequence[WorkerState] = (),
        task_queue: str = "",
        build_id: str = "",
        host: str = "",
        prefix: str = "",
        query: str = "",
        limit: int | None = None,
    ) -> builtins.list[WorkerInfo]:
        """The workers that meet every given condition, ordered by key. `prefix`: how the key begins. `query`: words as in the
        dashboard: "state:inactive host:db-3 photo"."""
        found: builtins.list[WorkerInfo] = []
        where = worker_filter(states, task_queue, build_id, host, prefix, query)
        request = service_pb2.ListWorkersRequest(namespace=self._namespace, filter=where)
        while limit is None or len(found) < limit:
            request.page_size = min(PAGE_MAX, limit - len(found)) if limit is not None else PAGE_MAX
            page = self._call(lambda endpoint: endpoint.liveness.ListWorkers, "ListWorkers", request)
            found.extend(map(WorkerInfo.from_proto, page.workers))
            request.page_token = page.next_page_token
            if not request.page_token:
                break
        return found

    def worker(self, key: str) -> WorkerInfo:
        """One worker, with the activities it holds. Raises WorkerUnknown if there is none of this key."""
        request = service_pb2.DescribeWorkerRequest(namespace=self._namespace, worker_instance_key=key)
        answer = self._call(lambda endpoint: endpoint.liveness.DescribeWorker, "DescribeWorker", request, key)
        return WorkerInfo.from_proto(answer.worker)

    def why(self, key: str, *, epoch: int = 0) -> Death | None:
        """Why a worker was declared dead; None if it never was. `epoch`: of which of its leases; 0: of the last one that ended so."""
        request = service_pb2.GetDeathCertificateRequest(
            namespace=self._namespace, worker_instance_key=key, lease_epoch=epoch
        )
        try:
            answer = self._call_or_fail(lambda endpoint: endpoint.liveness.GetDeathCertificate, request)
        except RpcFailed as error:
            if error.rpc_failure.reason == "DEATH_NOT_FOUND":
                return None
            raise self._error(error.rpc_failure, "GetDeathCertificate", key) from None
        return Death.from_proto(answer)

    def watch(self, *, worker: str = "", from_beginning: bool = False) -> Iterator[LivenessEvent]:
        """The events of the namespace, or of one worker, as they happen: `for event in client.watch()`. In order within a
        shard, without gap or repeat, also while servers restart. Plain renewals of leases are no events. `from_beginning`:
        with the oldest event that is kept."""
        request = service_pb2.WatchEventsRequest(
            namespace=self._namespace, worker_instance_key=worker, from_beginning=from_beginning
        )
        feed = EventFeed(self._connect(), request, self._timeout_ms)
        try:
            while True:
                for event in result_of_blocking(feed.next_events()):
                    yield event
        finally:
            feed.close()

    def pause(
        self,
        worker: str = "",
        *,
        states: Sequence[WorkerState] = (),
        task_queue: str = "",
        build_id: str = "",
        host: str = "",
        prefix: str = "",
        query: str = "",
        all: bool = False,  # noqa: A002  # as in the API
        reason: str = "",
    ) -> int:
        """Give workers no new work; they keep their leases and finish what they have. Name one worker by its key, or conditions
        that select among the workers there are, or `all=True` for the whole namespace with the workers that join later.
        Returns how many were changed."""
        where = worker_filter(states, task_queue, build_id, host, prefix, query)
        _check_selection(worker, where, all)
        request = admin_pb2.PauseWorkersRequest(
            namespace=self._namespace,
            worker_instance_key=worker,
            filter=where if where.ListFields() else None,
            all=all,
            reason=reason,
        )
        answer = self._call(lambda endpoint: endpoint.admin.PauseWorkers, "PauseWorkers", request, worker)
        return int(answer.changed)

    def resume(
        self,
        worker: str = "",
        *,
        states: Sequence[WorkerState] = (),
        task_queue: str = "",
        build_id: str = "",
        host: str = "",
        prefix: str = "",
        query: str = "",
        all: bool = False,  # noqa: A002  # as in the API
    ) -> int:
        """Give paused workers work again; selected like those of `pause`. Ends a drain, too. Returns how many were changed."""
        where = worker_filter(states, task_queue, build_id, host, prefix, query)
        _check_selection(worker, where, all)
        request = admin_pb2.ResumeWorkersRequest(
            namespace=self._namespace,
            worker_instance_key=worker,
            filter=where if where.ListFields() else None,
            all=all,
        )
        answer = self._call(lambda endpoint: endpoint.admin.ResumeWorkers, "ResumeWorkers", request, worker)
        return int(answer.changed)

    def drain(self, worker: str, *, limit: float | timedelta = 60.0, reason: str = "") -> int:
        """Give a worker no new work, and let it finish what it has and end; what is left after `limit` seconds is rescheduled.
        Returns how many activities it holds."""
        request = admin_pb2.DrainWorkerRequest(
            namespace=self._namespace, worker_instance_key=worker, limit=to_duration(limit), reason=reason
        )
        answer = self._call(lambda endpoint: endpoint.admin.DrainWorker, "DrainWorker", request, worker)
        return int(answer.bound_activities)

    # -- metrics

    def report_metrics(
        self,
        worker: str,
        gauges: Mapping[str, float] | None = None,
        *,
        counters: Mapping[str, float] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Report numbers about a component, like `Worker.metrics`. `worker`: its instance key; it need not be registered."""
        request = report_request(self._namespace, worker, gauges or {}, counters or {}, labels)
        result_of_blocking(report_metrics(self._connect(), request, self._timeout_ms / 1_000))

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
        """The series that meet every given condition and have samples from `start`, an hour before the end, to `end`, now.
        `step`: seconds that one point stands for; None: so that a series has at most 300 points."""
        request = component_metrics_service_pb2.QueryMetricsRequest(
            namespace=self._namespace,
            worker_instance_key=worker,
            name=name,
            labels=labels or {},
            start_time=None if start is None else time_to_proto(start),
            end_time=None if end is None else time_to_proto(end),
            step=None if step is None else to_duration(step),
        )
        found: builtins.list[MetricSeries] = []
        while True:
            try:
                page = self._call_or_fail(lambda endpoint: endpoint.metrics.QueryMetrics, request)
            except RpcFailed as error:
                address = format_addresses(self._addresses)
                raise metrics_error(error.rpc_failure, "QueryMetrics", address, self._namespace) from None
            found.extend(map(series_from_proto, page.series))
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token

    # -- calls

    def _connect(self) -> Connection:
        if self._connection is None:
            self._connection = Connection.acquire(self._addresses, self._credentials)
        return self._connection

    def _activity_call(self, name: str, request: Message, ref: ActivityRef) -> Any:
        try:
            return self._call_or_fail(lambda endpoint: getattr(endpoint.activities, name), request)
        except RpcFailed as error:
            raise activity_error(
                error.rpc_failure,
                name,
                ref,
                address=format_addresses(self._addresses),
                namespace=self._namespace,
            ) from None

    def schedule_call(self, name: str, request: Any) -> Any:
        """For `BlockingSchedules`."""
        try:
            return self._call_or_fail(lambda endpoint: getattr(endpoint.schedules, name), request)
        except RpcFailed as error:
            raise schedule_error(
                error.rpc_failure,
                name,
                getattr(request, "schedule_id", ""),
                address=format_addresses(self._addresses),
                namespace=self._namespace,
            ) from None

    def _call(self, select_method: SelectMethod, name: str, request: Message, worker: str = "") -> Any:
        try:
            return self._call_or_fail(select_method, request)
        except RpcFailed as error:
            raise self._error(error.rpc_failure, name, worker) from None

    def _error(self, rpc_failure: RpcFailure, name: str, worker: str) -> LivenessSdkError:
        address = format_addresses(self._addresses)
        return client_error(rpc_failure, name, address=address, namespace=self._namespace, worker=worker)

    def _call_or_fail(self, select_method: SelectMethod, request: Message) -> Any:
        """Every call may be repeated: the server answers a repeated one like the first."""
        connection = self._connect()
        outcome: Future[Any] = connection.call(
            select_method,
            request,
            timeout_s=connection.call_timeout_s(self._timeout_ms / 1_000),
            deadline_ms=connection.clock.monotonic_ms() + self._timeout_ms,
            should_retry=lambda rpc_failure: rpc_failure.is_retryable,
        )
        return result_of_blocking(outcome)


def _check_selection(worker: str, where: service_pb2.WorkerFilter, all_workers: bool) -> None:
    if bool(worker) + bool(where.ListFields()) + all_workers != 1:
        raise InvalidArgument(detail="name one worker, or conditions, or all=True; and one of these only.")
