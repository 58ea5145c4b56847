"""ActivityService: handlers translate messages; `ActivityOwnership` and matching decide."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from liveness.dispatch.ownership import ActivityOwnership
from liveness.domain.activity import Activity, ActivityState
from liveness.domain.errors import Exhausted, InvalidField, PageTokenInvalid
from liveness.domain.events import ActivityHeartbeatRecorded
from liveness.domain.keys import ActivityId, WorkerKey
from liveness.engine.node import Node
from liveness.routing.own_calls import OwnCalls
from liveness.security.principal import caller_name
from liveness.server import activity_wire as wire
from liveness.server import tokens
from liveness.server.bulk_activities import BulkActivities
from liveness.server.concurrency_limits import ConcurrencyLimits, waiting_reason
from liveness.server.task_queues import TaskQueues
from liveness.server.validation import duration_ms, optional_identifier, page_size, require_identifier, text
from liveness.server.wire import event_message, worker_key
from liveness.slices import build_in_slices
from liveness.store.api import ActivityRow
from liveness.telemetry.telemetry import Telemetry
from liveness.v1 import activity_pb2 as pb

POLL_MS_DEFAULT = 20_000
POLL_MS_MAX = 60_000
ACTIVITIES_PER_POLL_MAX = 100
HISTORY_EVENTS_MAX = 1_000


_NO_ACTIVITY = ActivityId("", "", "")


class WorkerCall(Protocol):
    """A request that a worker makes for itself."""

    @property
    def session_id(self) -> str: ...


def _holder_key(
    request: pb.CompleteActivityRequest
    | pb.FailActivityRequest
    | pb.ReleaseActivityRequest
    | pb.RecordActivityHeartbeatRequest,
) -> WorkerKey:
    return WorkerKey(request.namespace, request.worker_instance_key)


class ActivityPoller(Protocol):
    async def poll(
        self,
        worker_key: WorkerKey,
        session_id: str,
        task_queue: str,
        limit: int,
        wait_ms: int,
        types: frozenset[str] | None,
    ) -> list[Activity]: ...


class ActivityService:
    def __init__(
        self,
        node: Node,
        ownership: ActivityOwnership,
        poller: ActivityPoller,
        telemetry: Telemetry | None = None,
        task_queues: TaskQueues | None = None,
        calls: OwnCalls | None = None,
        limits: ConcurrencyLimits | None = None,
    ) -> None:
        """`calls`: to the owners of other shards; None if this node serves all."""
        self._node = node
        self._ownership = ownership
        self._poller = poller
        self._telemetry = telemetry
        self._task_queues = task_queues
        self._limits = limits
        calls = calls or OwnCalls(None, node.clock)
        self._bulk = BulkActivities(node, calls, self.retry_activity, self.cancel_activity)

    @contextmanager
    def _counting_refusals(self, namespace: str) -> Iterator[None]:
        try:
            yield
        except Exhausted as error:
            if self._telemetry is not None:
                self._telemetry.record_refused_activity(namespace, error)
            raise

    async def schedule_activity(self, request: pb.ScheduleActivityRequest) -> pb.ScheduleActivityResponse:
        key = wire.activity_key(request.namespace, request.id)
        spec = wire.spec(request, require_identifier("task_queue", request.task_queue))
        start = wire.start(request, self._node.clock.wall_ms())
        with self._counting_refusals(key.namespace):
            created, activity = await self._ownership.schedule(key, spec, start, caller_name())
        return pb.ScheduleActivityResponse(created=created, state=wire.state_number(activity))

    async def poll_activity(self, request: pb.PollActivityRequest) -> pb.PollActivityResponse:
        key = worker_key(request.namespace, request.worker_instance_key)
        session_id = optional_identifier("session_id", request.session_id)
        task_queue = optional_identifier("task_queue", request.task_queue)
        wait_ms = POLL_MS_DEFAULT
        if request.HasField("wait"):
            wait_ms = duration_ms("wait", request.wait, allow_zero=True)
            if wait_ms > POLL_MS_MAX:
                raise InvalidField(field="wait", rule=f"must be at most {POLL_MS_MAX // 1_000} s")
        limit = request.max_activities or 1
        if not 1 <= limit <= ACTIVITIES_PER_POLL_MAX:
            raise InvalidField(field="max_activities", rule=f"must be 0 (for 1) to {ACTIVITIES_PER_POLL_MAX}")
        types = wire.activity_types(request.activity_types)
        await self._check_caller(key, request, _NO_ACTIVITY)
        found = await self._poller.poll(key, session_id, task_queue, limit, wait_ms, types)
        return pb.PollActivityResponse(activities=[wire.task_message(activity) for activity in found])

    async def complete_activity(self, request: pb.CompleteActivityRequest) -> pb.CompleteActivityResponse:
        key = wire.activity_key(request.namespace, request.id)
        encoding = wire.payload_encoding("result_encoding", request.result_encoding)
        result = wire.payload("result", request.result)
        await self._check_caller(_holder_key(request), request, key.id)
        await self._ownership.complete(key, wire.holder(request), result, encoding)
        return pb.CompleteActivityResponse()

    async def fail_activity(self, request: pb.FailActivityRequest) -> pb.FailActivityResponse:
        key = wire.activity_key(request.namespace, request.id)
        after_ms = (
            duration_ms("retry_after", request.retry_after, allow_zero=True)
            if request.HasField("retry_after")
            else None
        )
        await self._check_caller(_holder_key(request), request, key.id)
        activity = await self._ownership.fail(
            key,
            wire.holder(request),
            text("message", request.message),
            retryable=not request.non_retryable,
            after_ms=after_ms,
            quarantine=request.quarantine,
            details=wire.last_heartbeat_details(request),
            stack_trace=wire.stack_trace(request.stack_trace),
        )
        return pb.FailActivityResponse(state=wire.state_number(activity))

    async def record_activity_heartbeat(
        self, request: pb.RecordActivityHeartbeatRequest
    ) -> pb.RecordActivityHeartbeatResponse:
        key = wire.activity_key(request.namespace, request.id)
        details = wire.heartbeat_details(request)
        await self._check_caller(_holder_key(request), request, key.id)
        await self._ownership.record_heartbeat(key, wire.holder(request), details)
        return pb.RecordActivityHeartbeatResponse()

    async def claim_activity(self, request: pb.ClaimActivityRequest) -> pb.ClaimActivityResponse:
        key = wire.activity_key(request.namespace, request.id)
        worker = worker_key(request.namespace, request.worker_instance_key)
        await self._check_caller(worker, request, key.id)
        task_queue = optional_identifier("task_queue", request.task_queue)
        if not task_queue:
            task_queue = await self._ownership.task_queue_of(worker, key.id)
            if not task_queue:
                raise InvalidField(field="task_queue", rule="must be set when the worker has no task_queue")
        session_id = optional_identifier("session_id", request.session_id)
        with self._counting_refusals(key.namespace):
            activity = await self._ownership.claim(key, wire.spec(request, task_queue), worker, session_id)
        return pb.ClaimActivityResponse(activity=wire.task_message(activity))

    async def release_activity(self, request: pb.ReleaseActivityRequest) -> pb.ReleaseActivityResponse:
        key = wire.activity_key(request.namespace, request.id)
        await self._check_caller(_holder_key(request), request, key.id)
        activity = await self._ownership.give_back(key, wire.holder(request))
        return pb.ReleaseActivityResponse(state=wire.state_number(activity))

    async def _check_caller(self, worker: WorkerKey, request: WorkerCall, id: ActivityId) -> None:
        """Where callers are asked who they are: refuse those that are not the worker that they name."""
        if principal := caller_name():
            session_id = optional_identifier("session_id", request.session_id)
            await self._ownership.check_caller(worker, id, principal, session_id)

    async def describe_activity(self, request: pb.DescribeActivityRequest) -> pb.DescribeActivityResponse:
        key = wire.activity_key(request.namespace, request.id)
        shard, activity = await self._ownership.describe(key)
        message = wire.activity_message(
            key,
            activity,
            shard.id,
            now_ms=shard.now_ms(),
            wall_ms=self._node.clock.wall_ms(),
            include_payloads=True,
        )
        if activity.state is ActivityState.AVAILABLE:
            message.waiting_reason = waiting_reason(shard, key.namespace, key.workflow_id)
        return pb.DescribeActivityResponse(activity=message)

    async def get_activity_history(
        self, request: pb.GetActivityHistoryRequest
    ) -> pb.GetActivityHistoryResponse:
        key = wire.activity_key(request.namespace, request.id)
        shard, _ = await self._ownership.describe(key)
        found = await self._node.store.activity_history(key, shard.id, limit=HISTORY_EVENTS_MAX + 1)
        entries = list(reversed(found[:HISTORY_EVENTS_MAX]))
        told = [entry for entry in entries if not isinstance(entry.event, ActivityHeartbeatRecorded)]
        return pb.GetActivityHistoryResponse(
            attempts=wire.attempt_messages(entries),
            events=await build_in_slices(told, partial(event_message, shard.id)),
            is_cut=found.is_cut or len(found) > HISTORY_EVENTS_MAX,
        )

    async def list_activities(self, request: pb.ListActivitiesRequest) -> pb.ListActivitiesResponse:
        namespace = require_identifier("namespace", request.namespace)
        activity_filter = wire.activity_filter(request.filter)
        size = page_size(request.page_size)
        listing = ("activities", namespace, activity_filter)
        after = (
            ActivityId(
                *tokens.redeem(
                    request.page_token, tuple[tokens.Key, tokens.Key, tokens.Key], PageTokenInvalid, *listing
                )
            )
            if request.page_token
            else None
        )
        rows = await self._node.store.list_activities(namespace, activity_filter, after, size + 1)
        listed = rows[:size]
        activities = await self._ownership.with_current_epochs([(row.key, row.activity) for row in listed])
        wall_ms = self._node.clock.wall_ms()

        def build(item: tuple[ActivityRow, Activity]) -> pb.Activity:
            row, activity = item
            now_ms = self._node.observed_ms(row.shard_id)
            return wire.activity_message(
                row.key, activity, row.shard_id, now_ms=now_ms, wall_ms=wall_ms, include_payloads=False
            )

        response = pb.ListActivitiesResponse(
            activities=await build_in_slices(zip(listed, activities, strict=True), build)
        )
        if listed and (len(rows) > size or rows.is_cut):
            response.next_page_token = tokens.issue(list(listed[-1].key.id), *listing)
        return response

    async def list_task_queues(self, request: pb.ListTaskQueuesRequest) -> pb.ListTaskQueuesResponse:
        assert self._task_queues is not None, "a whole server has them"
        return await self._task_queues.list(request)

    async def set_concurrency_limit(
        self, request: pb.SetConcurrencyLimitRequest
    ) -> pb.SetConcurrencyLimitResponse:
        assert self._limits is not None, "a whole server has them"
        return await self._limits.set(request)

    async def remove_concurrency_limit(
        self, request: pb.RemoveConcurrencyLimitRequest
    ) -> pb.RemoveConcurrencyLimitResponse:
        assert self._limits is not None, "a whole server has them"
        return await self._limits.remove(request)

    async def list_concurrency_limits(
        self, request: pb.ListConcurrencyLimitsRequest
    ) -> pb.ListConcurrencyLimitsResponse:
        assert self._limits is not None, "a whole server has them"
        return await self._limits.list_page(request)

    async def bulk_update_activities(
        self, request: pb.BulkUpdateActivitiesRequest
    ) -> pb.BulkUpdateActivitiesResponse:
        return await self._bulk.update(request)

    async def cancel_activity(self, request: pb.CancelActivityRequest) -> pb.CancelActivityResponse:
        key = wire.activity_key(request.namespace, request.id)
        was_held = await self._ownership.cancel(key, text("reason", request.reason), caller_name())
        return pb.CancelActivityResponse(was_held=was_held)

    async def retry_activity(self, request: pb.RetryActivityRequest) -> pb.RetryActivityResponse:
        key = wire.activity_key(request.namespace, request.id)
        with self._counting_refusals(key.namespace):
            activity = await self._ownership.retry(key, caller_name(), text("reason", request.reason))
        return pb.RetryActivityResponse(state=wire.state_number(activity))
