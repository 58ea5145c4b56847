"""ProgressService: handlers translate messages; `domain/progress.py` decides."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from liveness.cluster.quotas import Quotas
from liveness.domain.errors import PageTokenInvalid
from liveness.domain.keys import WorkerKey
from liveness.domain.progress import UnitKey, name_of_unit
from liveness.engine.node import Node
from liveness.engine.shard import Shard
from liveness.security.principal import caller_name
from liveness.server import progress_wire as wire
from liveness.server import tokens
from liveness.server.all_nodes import AllNodes, is_local_only
from liveness.server.validation import page_size, require_identifier, text
from liveness.slices import build_in_slices
from liveness.store.api import ProgressRow
from liveness.telemetry.telemetry import Telemetry
from liveness.v1 import progress_service_pb2 as pb

CheckKeyOwner = Callable[[WorkerKey, str], Awaitable[None]]


class ProgressService:
    def __init__(
        self,
        node: Node,
        telemetry: Telemetry,
        quotas: Quotas,
        all_nodes: AllNodes | None = None,
        check_key_owner: CheckKeyOwner | None = None,
    ) -> None:
        """`all_nodes`: None on a node that serves all shards alone. `check_key_owner`: refuses a principal that names a worker of
        another one; None where callers are not asked who they are."""
        self._check_key_owner = check_key_owner
        self._node = node
        self._telemetry = telemetry
        self._quotas = quotas
        self._all_nodes = all_nodes

    async def report_progress(self, request: pb.ReportProgressRequest) -> pb.ReportProgressResponse:
        key = wire.unit_key(request.namespace, request.unit)
        report = wire.progress_report(request)
        if self._check_key_owner is not None and (principal := caller_name()):
            await self._check_key_owner(WorkerKey(key.namespace, report.worker), principal)
        while key not in self._shard(key).progress and not self._quotas.has_room_for_unit(
            self._shard(key), key.namespace
        ):
            await self._quotas.acquire_for_unit(self._shard(key), key.namespace)
        shard = self._shard(key)
        is_counted = shard.report_progress(key, report)
        # As of this report: later ones may come before it is durable.
        message = self._message(shard, key)
        await self._node.wait_durable(shard)
        self._telemetry.record_progress(
            key.namespace, report.successes, report.error_count, is_counted=is_counted
        )
        return pb.ReportProgressResponse(progress=message, repeated_report=not is_counted)

    async def get_progress(self, request: pb.GetProgressRequest) -> pb.GetProgressResponse:
        key = wire.unit_key(request.namespace, request.unit)
        shard = self._shard(key)
        message = self._message(shard, key)
        await self._node.wait_durable(shard)
        return pb.GetProgressResponse(progress=message)

    async def list_progress(self, request: pb.ListProgressRequest) -> pb.ListProgressResponse:
        namespace = require_identifier("namespace", request.namespace)
        prefix = wire.unit_prefix(request.prefix)
        size = page_size(request.page_size)
        listing = ("progress", namespace, prefix, request.failing)
        after = (
            tokens.redeem(request.page_token, tokens.Key, PageTokenInvalid, *listing)
            if request.page_token
            else None
        )
        rows = await self._node.store.list_progress(namespace, prefix, request.failing, after, size + 1)
        listed = rows[:size]
        if is_local_only.get():  # another node builds the list, and needs the rates that this one knows
            listed = [row for row in listed if self._node.serves(row.shard_id)]
        remote = await self._remote_units(request, listed)

        def build(row: ProgressRow) -> pb.UnitProgress:
            message = wire.progress_message(row.key, row.progress)
            if self._node.serves(row.shard_id):
                shard = self._node.shard_by_id(row.shard_id)
                rates = shard.progress.rates_of(row.key, shard.now_ms())
            else:
                known = remote.get(row.key.unit, message)
                rates = round(known.successes_per_minute), round(known.successes_per_hour)
            message.successes_per_minute, message.successes_per_hour = rates
            return message

        response = pb.ListProgressResponse(units=await build_in_slices(listed, build))
        if rows[:size] and (len(rows) > size or rows.is_cut):
            response.next_page_token = tokens.issue(rows[:size][-1].key.unit, *listing)
        return response

    async def _remote_units(
        self, request: pb.ListProgressRequest, listed: list[ProgressRow]
    ) -> dict[str, pb.UnitProgress]:
        """The same page as the other nodes see it, each with the units that it serves. Those of a node that does not answer are
        left out."""
        if self._all_nodes is None or all(self._node.serves(row.shard_id) for row in listed):
            return {}
        answers = await self._all_nodes.call_other_nodes(
            "ProgressService/ListProgress", request, pb.ListProgressResponse, skip_failed=True
        )
        return {unit.unit: unit for answer in answers for unit in answer.units}

    async def forget_progress(self, request: pb.ForgetProgressRequest) -> pb.ForgetProgressResponse:
        key = wire.unit_key(request.namespace, request.unit)
        shard = self._shard(key)
        shard.forget_progress(key, text("reason", request.reason), caller_name())
        await self._node.wait_durable(shard)
        return pb.ForgetProgressResponse()

    def _shard(self, key: UnitKey) -> Shard:
        return self._node.shard(key.namespace, name_of_unit(key.unit))

    def _message(self, shard: Shard, key: UnitKey) -> pb.UnitProgress:
        return wire.progress_message(key, shard.progress[key], shard.progress.rates_of(key, shard.now_ms()))
