"""The only mapping between messages about components and domain values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from google.protobuf.timestamp_pb2 import Timestamp

from liveness.domain.component import (
    COMPONENT_PREFIX,
    DETAILS_BYTES_MAX,
    GROUP_NAME,
    LAST_LINES_MAX,
    LINE_CHARS_MAX,
    RESTARTS_MAX,
    SUPERVISOR_PREFIX,
    Component,
    ComponentOrder,
    ComponentStatus,
    OrderAction,
    OrderBook,
    ProcessExit,
    group_of,
    index_of,
)
from liveness.domain.component_decider import SUPERVISOR_SILENT, ComponentReport, current_status
from liveness.domain.errors import InvalidField
from liveness.domain.keys import WorkerKey
from liveness.domain.worker import Profile, Worker, WorkerState
from liveness.server.component_orders import LogRequest
from liveness.server.validation import (
    check_count,
    optional_identifier,
    require_identifier,
    text,
    timestamp_ns,
)
from liveness.v1 import component_pb2, component_service_pb2

ORDERED_COMPONENTS_MAX = 1_000
PROCESSES_MAX = 10_000
LOG_LINES_MAX = 1_000
_NUMBER_MAX = 2**53
_STATUSES = {int(status): status for status in ComponentStatus}
_ACTIONS = {int(action): action for action in OrderAction}


# -- from messages


def component_key(namespace: str, id: str) -> WorkerKey:
    require_identifier("worker_instance_key", id)
    if group_of(id) is None:
        raise InvalidField(
            field="worker_instance_key", rule="must be a component id, such as worker:discovery:0"
        )
    return WorkerKey(require_identifier("namespace", namespace), id)


def supervisor_worker_key(namespace: str, key: str) -> WorkerKey:
    require_identifier("worker_instance_key", key)
    if not key.startswith(SUPERVISOR_PREFIX) or not GROUP_NAME.fullmatch(key[len(SUPERVISOR_PREFIX) :]):
        raise InvalidField(
            field="worker_instance_key", rule="must be the key of a supervisor, such as supervisor:discovery"
        )
    return WorkerKey(require_identifier("namespace", namespace), key)


def group_name(value: str) -> str:
    require_identifier("group", value)
    if not GROUP_NAME.fullmatch(value):
        raise InvalidField(
            field="group",
            rule="must be letters, digits, '.', '_' and '-', at most 100, not beginning with a mark",
        )
    return value


def component_status(field: str, number: int) -> ComponentStatus:
    status = _STATUSES.get(number)
    if status is None:
        raise InvalidField(field=field, rule="must be one of the known values")
    return status


def order_action(number: int) -> OrderAction:
    action = _ACTIONS.get(number)
    if action is None:
        raise InvalidField(field="action", rule="must be one of the known values")
    return action


def component_report(
    request: component_service_pb2.ReportComponentRequest, principal: str
) -> ComponentReport:
    if not 1 <= request.number <= _NUMBER_MAX:
        raise InvalidField(field="number", rule="must be 1 or more, and below 2^53")
    if request.process_id < 0 or request.restart_count < 0:
        raise InvalidField(field="process_id and restart_count", rule="must not be negative")
    if not request.HasField("time"):
        raise InvalidField(field="time", rule="must be set")
    check_count("restart_times", request.restart_times, RESTARTS_MAX)
    return ComponentReport(
        number=request.number,
        status=component_status("status", int(request.status)),
        wall_ms=_wall_ms("time", request.time),
        session_id=require_identifier("session_id", request.session_id),
        reason=text("reason", request.reason),
        by=optional_identifier("by", request.by),
        process_id=request.process_id,
        process_start_ms=_wall_ms("process_start_time", request.process_start_time),
        paused=request.paused,
        wanted=request.wanted,
        details=_details(request.details_json),
        restart_count=request.restart_count,
        restarts=tuple(_wall_ms("restart_times", time) for time in request.restart_times),
        last_exit=_process_exit(request.last_exit) if request.HasField("last_exit") else None,
        principal=principal,
    )


def _wall_ms(field: str, value: Timestamp) -> int:
    return timestamp_ns(field, value) // 1_000_000


def _details(value: str) -> str:
    if len(value.encode()) > DETAILS_BYTES_MAX:
        raise InvalidField(field="details_json", rule=f"must be at most {DETAILS_BYTES_MAX} bytes")
    if value:
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(parsed, dict):
            raise InvalidField(field="details_json", rule="must be a JSON object")
    return value


def _process_exit(message: component_pb2.ProcessExit) -> ProcessExit:
    check_count("last_exit.last_lines", message.last_lines, LAST_LINES_MAX)
    return ProcessExit(
        code=message.code if message.HasField("code") else None,
        signal=optional_identifier("last_exit.signal", message.signal),
        wall_ms=_wall_ms("last_exit.time", message.time),
        last_lines=tuple(line[:LINE_CHARS_MAX].replace("\0", "\ufffd") for line in message.last_lines),
    )


def ordered_components(group: str, ids: Sequence[str]) -> tuple[str, ...]:
    check_count("component_ids", ids, ORDERED_COMPONENTS_MAX)
    for id in ids:
        if group_of(id) != group:
            raise InvalidField(field="component_ids", rule=f"must be components of the group {group}")
    return tuple(dict.fromkeys(ids))


# -- to messages


def _timestamp(wall_ms: int) -> Timestamp | None:
    if not wall_ms:
        return None
    return Timestamp(seconds=wall_ms // 1_000, nanos=wall_ms % 1_000 * 1_000_000)


def component_message(
    key: WorkerKey, worker: Worker, component: Component, profile: Profile, last_seen: Timestamp
) -> component_pb2.Component:
    status = current_status(worker)
    is_lost = status is not component.status
    return component_pb2.Component(
        component_id=key.instance_key,
        namespace=key.namespace,
        group=group_of(key.instance_key) or "",
        index=index_of(key.instance_key) or 0,
        status=status,  # type: ignore[arg-type]
        status_time=_timestamp(component.since_ms),
        reason=SUPERVISOR_SILENT if is_lost else component.reason,
        by="" if is_lost else component.by,
        process_id=component.process_id,
        process_start_time=_timestamp(component.process_start_ms),
        host_name=profile.host_name,
        build_id=profile.build_id,
        current_job=profile.current_job if worker.state is WorkerState.ACTIVE else "",
        details_json=component.details,
        restart_count=component.restart_count,
        last_restart_time=_timestamp(component.last_restart_ms),
        create_time=_timestamp(component.created_ms),
        last_seen_time=last_seen,
        last_exit=exit_message(component.last_exit) if component.last_exit else None,
        paused=component.paused,
        wanted=component.wanted,
        number=component.number,
        lease_epoch=worker.epoch,
        restart_times=_timestamps(component.restarts),
        supervisor_silent=is_lost,
    )


def _timestamps(times: Iterable[int]) -> list[Timestamp]:
    return [stamp for wall_ms in times if (stamp := _timestamp(wall_ms)) is not None]


def exit_message(ended: ProcessExit) -> component_pb2.ProcessExit:
    return component_pb2.ProcessExit(
        code=ended.code, signal=ended.signal, time=_timestamp(ended.wall_ms), last_lines=ended.last_lines
    )


def order_message(order: ComponentOrder) -> component_pb2.ComponentOrder:
    return component_pb2.ComponentOrder(
        number=order.number,
        action=order.action,  # type: ignore[arg-type]
        component_ids=order.components,
        count=order.processes,
        reason=order.reason,
        by=order.by,
        time=_timestamp(order.wall_ms),
    )


def mail_message(
    orders: Iterable[ComponentOrder], requests: Iterable[LogRequest]
) -> component_service_pb2.PollComponentOrdersResponse:
    return component_service_pb2.PollComponentOrdersResponse(
        orders=map(order_message, orders),
        log_requests=[
            component_service_pb2.PollComponentOrdersResponse.LogRequest(
                request_id=request.request_id,
                component_id=request.component,
                lines=request.lines,
                after=request.after,
            )
            for request in requests
        ],
    )


def group_message(
    key: WorkerKey, worker: Worker, orders: OrderBook, profile: Profile, last_seen: Timestamp
) -> component_pb2.ComponentGroup:
    return component_pb2.ComponentGroup(
        namespace=key.namespace,
        group=key.instance_key[len(SUPERVISOR_PREFIX) :],
        supervised=worker.state is WorkerState.ACTIVE,
        host_name=profile.host_name,
        process_id=profile.process_id,
        last_seen_time=last_seen,
        waiting_orders=[order_message(order) for order in orders.waiting],
        last_order_number=orders.last_number,
    )


def key_prefix_of(group: str) -> str:
    return f"{COMPONENT_PREFIX}{group}:" if group else COMPONENT_PREFIX
