"""ScheduleService: handlers translate messages; `domain/schedule.py` decides, and `tasks/schedules.py` fires."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from liveness.cluster.quotas import Quotas
from liveness.domain import schedule as schedules
from liveness.domain.errors import PageTokenInvalid
from liveness.domain.keys import ActivityKey
from liveness.domain.schedule import Schedule, ScheduleEvents, ScheduleKey
from liveness.engine.node import Node
from liveness.engine.shard import Shard
from liveness.security.principal import caller_name
from liveness.server import schedule_wire as wire
from liveness.server import tokens
from liveness.server.validation import page_size, require_identifier, text
from liveness.slices import build_in_slices
from liveness.store.api import ObjectRow
from liveness.store.object_rows import SCHEDULE_KIND
from liveness.v1 import activity_pb2
from liveness.v1 import schedule_service_pb2 as pb


class Trigger(Protocol):
    async def __call__(self, key: ScheduleKey, trigger_id: str, by: str) -> tuple[ActivityKey, bool]: ...


class ScheduleService:
    def __init__(self, node: Node, quotas: Quotas, trigger: Trigger) -> None:
        self._node = node
        self._quotas = quotas
        self._trigger = trigger

    async def create_schedule(self, request: pb.CreateScheduleRequest) -> pb.CreateScheduleResponse:
        key, spec = self._key(request), wire.schedule_spec(request.spec)
        while key not in self._shard(key).objects.schedules and not self._quotas.has_room_for_schedule(
            self._shard(key), key.namespace
        ):
            await self._quotas.acquire_for_schedule(self._shard(key), key.namespace)
        created, message = await self._change(
            key, lambda known: schedules.create(key, known, spec, self._wall_ms(), caller_name())
        )
        return pb.CreateScheduleResponse(created=created, schedule=message)

    async def update_schedule(self, request: pb.UpdateScheduleRequest) -> pb.UpdateScheduleResponse:
        key, spec = self._key(request), wire.schedule_spec(request.spec)
        _, message = await self._change(
            key, lambda known: schedules.update(key, known, spec, self._wall_ms(), caller_name())
        )
        return pb.UpdateScheduleResponse(schedule=message)

    async def get_schedule(self, request: pb.GetScheduleRequest) -> pb.GetScheduleResponse:
        key = self._key(request)
        shard = self._shard(key)
        message = wire.schedule_message(key, shard.objects.schedules[key], shard.id)
        await self._node.wait_durable(shard)
        return pb.GetScheduleResponse(schedule=message)

    async def list_schedules(self, request: pb.ListSchedulesRequest) -> pb.ListSchedulesResponse:
        namespace = require_identifier("namespace", request.namespace)
        prefix = wire.schedule_prefix(request.prefix)
        size = page_size(request.page_size)
        listing = ("schedules", namespace, prefix)
        after = (
            tokens.redeem(request.page_token, tokens.Key, PageTokenInvalid, *listing)
            if request.page_token
            else None
        )
        rows = await self._node.store.list_objects(namespace, SCHEDULE_KIND, prefix, after, size + 1)
        listed = rows[:size]

        def build(row: ObjectRow) -> pb.Schedule:
            key = ScheduleKey(row.key.namespace, row.key.name)
            assert isinstance(row.value, Schedule)
            return wire.schedule_message(key, row.value, row.shard_id, in_full=False)

        response = pb.ListSchedulesResponse(schedules=await build_in_slices(listed, build))
        if listed and (len(rows) > size or rows.is_cut):
            response.next_page_token = tokens.issue(listed[-1].key.name, *listing)
        return response

    async def pause_schedule(self, request: pb.PauseScheduleRequest) -> pb.PauseScheduleResponse:
        key, reason = self._key(request), text("reason", request.reason)
        changed, _ = await self._change(key, lambda known: schedules.pause(key, known, reason, caller_name()))
        return pb.PauseScheduleResponse(changed=changed)

    async def resume_schedule(self, request: pb.ResumeScheduleRequest) -> pb.ResumeScheduleResponse:
        key, reason = self._key(request), text("reason", request.reason)
        changed, message = await self._change(
            key, lambda known: schedules.resume(key, known, reason, self._wall_ms(), caller_name())
        )
        response = pb.ResumeScheduleResponse(changed=changed)
        if message is not None and message.HasField("next_time"):
            response.next_time.CopyFrom(message.next_time)
        return response

    async def trigger_schedule(self, request: pb.TriggerScheduleRequest) -> pb.TriggerScheduleResponse:
        key, trigger_id = self._key(request), wire.trigger_id(request.trigger_id)
        activity, created = await self._trigger(key, trigger_id, caller_name())
        await self._node.wait_durable(self._shard(key))
        return pb.TriggerScheduleResponse(
            id=activity_pb2.ActivityId(**activity.id._asdict()), created=created
        )

    async def delete_schedule(self, request: pb.DeleteScheduleRequest) -> pb.DeleteScheduleResponse:
        key, reason = self._key(request), text("reason", request.reason)
        await self._change(key, lambda known: schedules.delete(key, known, reason, caller_name()))
        return pb.DeleteScheduleResponse()

    async def _change(
        self, key: ScheduleKey, decide: Callable[[Schedule | None], ScheduleEvents]
    ) -> tuple[bool, pb.Schedule | None]:
        """Decide on the schedule as it is. Returns, when that is durable, whether anything changed, and the schedule after it."""
        shard = self._shard(key)
        events = decide(shard.objects.schedules.get(key))
        after = shard.change_schedule(key, events)
        message = None if after is None else wire.schedule_message(key, after, shard.id)
        await self._node.wait_durable(shard)
        return bool(events), message

    def _key(
        self,
        request: pb.CreateScheduleRequest
        | pb.UpdateScheduleRequest
        | pb.GetScheduleRequest
        | pb.PauseScheduleRequest
        | pb.ResumeScheduleRequest
        | pb.TriggerScheduleRequest
        | pb.DeleteScheduleRequest,
    ) -> ScheduleKey:
        return wire.schedule_key(request.namespace, request.schedule_id)

    def _shard(self, key: ScheduleKey) -> Shard:
        return self._node.shard(key.namespace, schedules.workflow_of(key.schedule_id))

    def _wall_ms(self) -> int:
        return self._node.clock.wall_ms()
