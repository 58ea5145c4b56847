"""ComponentService: handlers translate messages; `component_decider` decides."""

from __future__ import annotations

from liveness.domain import component_decider
from liveness.domain.component import (
    SUPERVISOR_PREFIX,
    ComponentOrder,
    OrderAction,
    group_of,
    supervisor_key,
)
from liveness.domain.decider import check_owner
from liveness.domain.errors import (
    ComponentGroupNotFound,
    ComponentNotFound,
    InvalidField,
    PageTokenInvalid,
    SupervisorSilent,
    TooManyLogRequests,
)
from liveness.domain.keys import WorkerKey
from liveness.domain.worker import Worker, WorkerState
from liveness.domain.worker_control import check_lease_is_live
from liveness.engine.node import Node
from liveness.security.principal import caller_name
from liveness.server import component_wire as wire
from liveness.server import tokens
from liveness.server.component_orders import Output, SupervisorMail
from liveness.server.liveness_service import LivenessService
from liveness.server.validation import (
    check_count,
    duration_ms,
    optional_identifier,
    page_size,
    require_identifier,
    text,
)
from liveness.v1 import component_pb2, service_pb2, worker_pb2
from liveness.v1 import component_service_pb2 as pb

POLL_MS_DEFAULT = 20_000
POLL_MS_MAX = 60_000
OUTPUT_MS_MAX = 5_000
LINE_BYTES_MAX = 4_096


class ComponentService:
    def __init__(self, node: Node, workers: LivenessService, mail: SupervisorMail) -> None:
        self._node = node
        self._workers = workers
        self._mail = mail

    # -- supervisors

    async def report_component(self, request: pb.ReportComponentRequest) -> pb.ReportComponentResponse:
        key = wire.component_key(request.namespace, request.worker_instance_key)
        report = wire.component_report(request, caller_name())
        shard = self._node.shard(*key)
        moved = shard.report_component(key, report, self._node.policies.of(key.namespace))
        await self._node.wait_durable(shard)
        return pb.ReportComponentResponse(rescheduled_activities=moved)

    async def poll_component_orders(
        self, request: pb.PollComponentOrdersRequest
    ) -> pb.PollComponentOrdersResponse:
        key = wire.supervisor_worker_key(request.namespace, request.worker_instance_key)
        session_id = require_identifier("session_id", request.session_id)
        wait_ms = POLL_MS_DEFAULT
        if request.HasField("wait"):
            wait_ms = duration_ms("wait", request.wait, allow_zero=True)
            if wait_ms > POLL_MS_MAX:
                raise InvalidField(field="wait", rule=f"must be at most {POLL_MS_MAX // 1_000} s")
        self._live_supervisor(key, session_id)
        shard = self._node.shard(*key)
        shard.change_worker(key, component_decider.end_orders(shard.workers[key], request.done_through))
        has_waited = not wait_ms
        while True:
            orders = self._orders_after(key, session_id, request.known_through)
            # An order that is not durable may yet be lost, and must not be carried out.
            await self._node.wait_durable(self._node.shard(*key))
            requests = self._mail.take_requests(key)
            if orders or requests or has_waited:
                return wire.mail_message(orders, requests)
            if not self._orders_after(key, session_id, request.known_through):  # none came meanwhile
                await self._mail.wait(key, wait_ms)
                has_waited = True

    def _orders_after(self, key: WorkerKey, session_id: str, number: int) -> list[ComponentOrder]:
        supervisor = self._live_supervisor(key, session_id)
        return [order for order in supervisor.standing.orders.waiting if order.number > number]

    def _live_supervisor(self, key: WorkerKey, session_id: str) -> Worker:
        worker = self._node.shard(*key).describe(key)
        check_owner(key, worker, caller_name())
        check_lease_is_live(key, worker, session_id)
        return worker

    async def send_component_logs(self, request: pb.SendComponentLogsRequest) -> pb.SendComponentLogsResponse:
        key = wire.supervisor_worker_key(request.namespace, request.worker_instance_key)
        self._live_supervisor(key, require_identifier("session_id", request.session_id))
        check_count("lines", request.lines, wire.LOG_LINES_MAX)
        output = Output(tuple(line[:LINE_BYTES_MAX] for line in request.lines), text("next", request.next))
        self._mail.answer(key, require_identifier("request_id", request.request_id), output)
        return pb.SendComponentLogsResponse()

    # -- operators

    async def order_components(self, request: pb.OrderComponentsRequest) -> pb.OrderComponentsResponse:
        group = wire.group_name(request.group)
        key = WorkerKey(require_identifier("namespace", request.namespace), supervisor_key(group))
        action = wire.order_action(int(request.action))
        components = wire.ordered_components(group, request.component_ids)
        if action is OrderAction.SCALE:
            if components or not 0 <= request.count <= wire.PROCESSES_MAX:
                rule = f"must be 0 to {wire.PROCESSES_MAX}, for the whole group"
                raise InvalidField(field="count", rule=rule)
        elif request.count:
            raise InvalidField(field="count", rule="must be unset unless the action is SCALE")
        shard = self._node.shard(*key)
        supervisor = shard.workers.get(key)
        if supervisor is None:
            raise ComponentGroupNotFound(group=group, namespace=key.namespace)
        events = component_decider.order(
            group, supervisor, action, components, request.count, text("reason", request.reason),
            caller_name(), self._node.clock.wall_ms(),
        )  # fmt: skip
        shard.change_worker(key, events)
        await self._node.wait_durable(shard)
        return pb.OrderComponentsResponse(
            order_number=events[0].order.number, supervised=supervisor.state is WorkerState.ACTIVE
        )

    # -- readers

    async def get_component(self, request: pb.GetComponentRequest) -> pb.GetComponentResponse:
        key = wire.component_key(request.namespace, request.worker_instance_key)
        self._require_component(key)
        found = await self._workers.describe_worker(
            service_pb2.DescribeWorkerRequest(namespace=key.namespace, worker_instance_key=key.instance_key)
        )
        return pb.GetComponentResponse(component=found.worker.component)

    def _require_component(self, key: WorkerKey) -> None:
        worker = self._node.shard(*key).workers.get(key)
        if worker is None or worker.standing.component is None:
            raise ComponentNotFound(component=key.instance_key, namespace=key.namespace)

    async def list_components(self, request: pb.ListComponentsRequest) -> pb.ListComponentsResponse:
        group = wire.group_name(request.group) if request.group else ""
        check_count("statuses", request.statuses, 100)
        statuses = {wire.component_status("statuses", int(status)) for status in request.statuses}
        size = page_size(request.page_size)
        listing = ("components", group, *sorted(statuses))
        workers, next_token = await self._list_workers(
            request.namespace, wire.key_prefix_of(group), size, request.page_token, listing
        )
        found: list[component_pb2.Component] = [
            worker.component
            for worker in workers
            if worker.HasField("component") and (not statuses or int(worker.component.status) in statuses)
        ]
        return pb.ListComponentsResponse(components=found, next_page_token=next_token)

    async def list_component_groups(
        self, request: pb.ListComponentGroupsRequest
    ) -> pb.ListComponentGroupsResponse:
        size = page_size(request.page_size)
        workers, next_token = await self._list_workers(
            request.namespace, SUPERVISOR_PREFIX, size, request.page_token, ("component groups",)
        )
        groups = [worker.component_group for worker in workers if worker.HasField("component_group")]
        return pb.ListComponentGroupsResponse(groups=groups, next_page_token=next_token)

    async def _list_workers(
        self, namespace: str, prefix: str, size: int, page_token: str, listing: tuple[object, ...]
    ) -> tuple[list[worker_pb2.Worker], str]:
        after = tokens.redeem(page_token, str, PageTokenInvalid, *listing) if page_token else ""
        found = await self._workers.list_workers(
            service_pb2.ListWorkersRequest(
                namespace=namespace,
                filter=service_pb2.WorkerFilter(key_prefix=prefix),
                page_size=size,
                page_token=after,
            )
        )
        next_token = tokens.issue(found.next_page_token, *listing) if found.next_page_token else ""
        return list(found.workers), next_token

    async def get_component_logs(self, request: pb.GetComponentLogsRequest) -> pb.GetComponentLogsResponse:
        component = wire.component_key(request.namespace, request.worker_instance_key)
        group = group_of(component.instance_key)
        assert group is not None
        if not 0 <= request.lines <= wire.LOG_LINES_MAX:
            raise InvalidField(field="lines", rule=f"must be 0 (for 100) to {wire.LOG_LINES_MAX}")
        supervisor = WorkerKey(component.namespace, supervisor_key(group))
        worker = self._node.shard(*supervisor).workers.get(supervisor)
        if worker is None:
            raise ComponentGroupNotFound(group=group, namespace=component.namespace)
        if worker.state is not WorkerState.ACTIVE:
            raise SupervisorSilent(group=group)
        if not self._mail.has_room(supervisor):
            raise TooManyLogRequests(group=group)
        output = await self._mail.request_output(
            supervisor,
            component.instance_key,
            request.lines or 100,
            optional_identifier("after", request.after),
            OUTPUT_MS_MAX,
        )
        if output is None:
            raise SupervisorSilent(group=group)
        return pb.GetComponentLogsResponse(lines=output.lines, next=output.next)
