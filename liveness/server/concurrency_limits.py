"""Sets, removes and lists concurrency limits; `domain/concurrency.py` decides."""

from __future__ import annotations

from liveness.cluster.quotas import Quotas
from liveness.domain import concurrency
from liveness.domain.concurrency import MAXIMUM_MAX, ConcurrencyLimit, LimitKey
from liveness.domain.errors import InvalidField, PageTokenInvalid
from liveness.engine.node import Node
from liveness.engine.shard import Shard
from liveness.security.principal import caller_name
from liveness.server import tokens
from liveness.server.all_nodes import AllNodes, is_local_only
from liveness.server.validation import optional_identifier, page_size, require_identifier, text
from liveness.server.wire import timestamp
from liveness.slices import build_in_slices
from liveness.store.api import ObjectRow
from liveness.store.object_rows import LIMIT_KIND
from liveness.v1 import activity_pb2 as pb


class ConcurrencyLimits:
    def __init__(self, node: Node, quotas: Quotas, all_nodes: AllNodes | None = None) -> None:
        """`all_nodes`: None on a node that serves all shards alone."""
        self._node = node
        self._quotas = quotas
        self._all_nodes = all_nodes

    async def set(self, request: pb.SetConcurrencyLimitRequest) -> pb.SetConcurrencyLimitResponse:
        key, reason = _key(request), text("reason", request.reason)
        if not 0 <= request.maximum <= MAXIMUM_MAX:
            raise InvalidField(field="maximum", rule=f"must be 0 to {MAXIMUM_MAX}")
        while key not in self._shard(key).objects.limits and not self._quotas.has_room_for_limit(
            self._shard(key), key.namespace
        ):
            await self._quotas.acquire_for_limit(self._shard(key), key.namespace)
        shard = self._shard(key)
        known = shard.objects.limits.get(key)
        limit = shard.change_limit(
            key, concurrency.set_limit(key, known, request.maximum, reason, caller_name())
        )
        assert limit is not None
        message = _message(key, limit, shard.id, shard)
        await self._node.wait_durable(shard)
        return pb.SetConcurrencyLimitResponse(limit=message)

    async def remove(self, request: pb.RemoveConcurrencyLimitRequest) -> pb.RemoveConcurrencyLimitResponse:
        key, reason = _key(request), text("reason", request.reason)
        shard = self._shard(key)
        known = shard.objects.limits.get(key)
        shard.change_limit(key, concurrency.remove_limit(key, known, reason, caller_name()))
        await self._node.wait_durable(shard)
        return pb.RemoveConcurrencyLimitResponse()

    async def list_page(self, request: pb.ListConcurrencyLimitsRequest) -> pb.ListConcurrencyLimitsResponse:
        namespace = require_identifier("namespace", request.namespace)
        prefix = optional_identifier("prefix", request.prefix)
        size = page_size(request.page_size)
        listing = ("concurrency limits", namespace, prefix)
        after = (
            tokens.redeem(request.page_token, tokens.Key, PageTokenInvalid, *listing)
            if request.page_token
            else None
        )
        rows = await self._node.store.list_objects(namespace, LIMIT_KIND, prefix, after, size + 1)
        listed = rows[:size]
        if is_local_only.get():  # another node builds the list, and needs the counts that this one knows
            listed = [row for row in listed if self._node.serves(row.shard_id)]
        remote = await self._remote_limits(request, listed)

        def build(row: ObjectRow) -> pb.ConcurrencyLimit:
            assert isinstance(row.value, ConcurrencyLimit)
            key = LimitKey(row.key.namespace, row.key.name)
            shard = self._node.shard_by_id(row.shard_id) if self._node.serves(row.shard_id) else None
            message = _message(key, row.value, row.shard_id, shard)
            if shard is None and (known := remote.get(key.workflow_id)) is not None:
                message.running, message.waiting = known.running, known.waiting
            return message

        response = pb.ListConcurrencyLimitsResponse(limits=await build_in_slices(listed, build))
        if rows[:size] and (len(rows) > size or rows.is_cut):
            response.next_page_token = tokens.issue(rows[:size][-1].key.name, *listing)
        return response

    async def _remote_limits(
        self, request: pb.ListConcurrencyLimitsRequest, listed: list[ObjectRow]
    ) -> dict[str, pb.ConcurrencyLimit]:
        """The same page as the other nodes see it, each with the limits that it serves. Those of a node that does not answer are left
        out."""
        if self._all_nodes is None or all(self._node.serves(row.shard_id) for row in listed):
            return {}
        answers = await self._all_nodes.call_other_nodes(
            "ActivityService/ListConcurrencyLimits",
            request,
            pb.ListConcurrencyLimitsResponse,
            skip_failed=True,
        )
        return {limit.workflow_id: limit for answer in answers for limit in answer.limits}

    def _shard(self, key: LimitKey) -> Shard:
        return self._node.shard(*key)


def _key(request: pb.SetConcurrencyLimitRequest | pb.RemoveConcurrencyLimitRequest) -> LimitKey:
    return LimitKey(
        require_identifier("namespace", request.namespace),
        require_identifier("workflow_id", request.workflow_id),
    )


def _message(
    key: LimitKey, limit: ConcurrencyLimit, shard_id: int, shard: Shard | None
) -> pb.ConcurrencyLimit:
    message = pb.ConcurrencyLimit(
        namespace=key.namespace,
        workflow_id=key.workflow_id,
        maximum=limit.maximum,
        create_time=timestamp(limit.created_ms),
        update_time=timestamp(limit.updated_ms),
        shard_id=shard_id,
    )
    if shard is not None:
        limits = shard.objects.limits
        message.running, message.waiting = limits.running[key], limits.waiting[key]
    return message


def waiting_reason(shard: Shard, namespace: str, workflow_id: str) -> str:
    """Why no activity of the workflow may start now; empty if one may."""
    key = LimitKey(namespace, workflow_id)
    limits = shard.objects.limits
    limit = limits.get(key)
    if limit is None or limits.free_slots(key) > 0:
        return ""
    return f"{limits.running[key]} of {limit.maximum} activities of {workflow_id} are running"
