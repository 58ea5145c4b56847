"""BulkUpdateActivities: retry or cancel all activities that a filter chooses, some in each call.

Each activity is changed by the same call that changes one, at the node that owns its shard: the same rules, events and names. So it takes
the role that changes one, too."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from liveness.domain.activity import FINISHED_ACTIVITY_STATES, ActivityState
from liveness.domain.errors import InvalidField, LivenessError, PageTokenInvalid
from liveness.domain.keys import ActivityId
from liveness.engine.node import Node
from liveness.routing.own_calls import OwnCalls
from liveness.security.authorization import access_rule, authorize
from liveness.security.principal import current_caller
from liveness.server import activity_wire as wire
from liveness.server import tokens
from liveness.server.validation import require_identifier, text
from liveness.store.api import ActivityRow
from liveness.v1 import activity_pb2 as pb

ACTIVITIES_PER_CALL = 200
EXAMPLES_MAX = 10
AT_ONCE = 16
"""How many activities are changed at a time."""

_METHODS = pb.DESCRIPTOR.services_by_name["ActivityService"].methods_by_name
_APPLIES_TO = {
    pb.BULK_ACTION_RETRY: (ActivityState.QUARANTINED, ActivityState.FAILED),
    pb.BULK_ACTION_CANCEL: tuple(
        state
        for state in ActivityState
        if state not in FINISHED_ACTIVITY_STATES and state is not ActivityState.CANCEL_REQUESTED
    ),
}
_RULES = {
    pb.BULK_ACTION_RETRY: access_rule(_METHODS["RetryActivity"]),
    pb.BULK_ACTION_CANCEL: access_rule(_METHODS["CancelActivity"]),
}

Serve = Callable[[Any], Awaitable[Message]]


class BulkActivities:
    def __init__(self, node: Node, calls: OwnCalls, retry: Serve, cancel: Serve) -> None:
        """`retry` and `cancel` serve RetryActivity and CancelActivity for shards of this node."""
        self._node = node
        self._calls = calls
        self._serve = {pb.BULK_ACTION_RETRY: retry, pb.BULK_ACTION_CANCEL: cancel}

    async def update(self, request: pb.BulkUpdateActivitiesRequest) -> pb.BulkUpdateActivitiesResponse:
        namespace, reason = require_identifier("namespace", request.namespace), text("reason", request.reason)
        if request.action not in _APPLIES_TO:
            raise InvalidField(field="action", rule="must be BULK_ACTION_RETRY or BULK_ACTION_CANCEL")
        if (caller := current_caller.get()) is not None:
            authorize(caller.principal, _RULES[request.action], request)
        applies_to = _APPLIES_TO[request.action]
        where = wire.activity_filter(request.filter)
        states = tuple(state for state in applies_to if not where.states or state in where.states)
        if not states:
            raise InvalidField(field="filter.states", rule="has no state that the action applies to")
        where = replace(where, states=states)
        listing = ("bulk", namespace, where, request.action)
        after = (
            ActivityId(
                *tokens.redeem(
                    request.page_token, tuple[tokens.Key, tokens.Key, tokens.Key], PageTokenInvalid, *listing
                )
            )
            if request.page_token
            else None
        )
        rows = await self._node.store.list_activities(namespace, where, after, ACTIVITIES_PER_CALL + 1)
        chosen = rows[:ACTIVITIES_PER_CALL]
        answer = pb.BulkUpdateActivitiesResponse(matched=len(chosen), examples=self._examples(chosen))
        if request.preview:
            answer.changed = len(chosen)
        else:
            await self._change(chosen, request.action, reason, answer)
        if chosen and (len(rows) > ACTIVITIES_PER_CALL or rows.is_cut):
            answer.next_page_token = tokens.issue(list(chosen[-1].key.id), *listing)
        return answer

    async def _change(
        self,
        chosen: list[ActivityRow],
        action: pb.BulkAction.ValueType,
        reason: str,
        answer: pb.BulkUpdateActivitiesResponse,
    ) -> None:
        room = asyncio.Semaphore(AT_ONCE)

        async def change(row: ActivityRow) -> str:
            async with room:
                try:
                    await self._change_one(row, action, reason)
                except LivenessError as error:
                    return str(error)
            return ""

        for refusal in await asyncio.gather(*map(change, chosen)):
            answer.changed += not refusal
            answer.refused += bool(refusal)
            answer.first_refusal = answer.first_refusal or refusal

    async def _change_one(self, row: ActivityRow, action: pb.BulkAction.ValueType, reason: str) -> None:
        namespace, id = row.key.namespace, pb.ActivityId(**row.key.id._asdict())
        request: Message
        method: MethodDescriptor
        if action == pb.BULK_ACTION_RETRY:
            method, request = (
                _METHODS["RetryActivity"],
                pb.RetryActivityRequest(namespace=namespace, id=id, reason=reason),
            )
        else:
            method, request = (
                _METHODS["CancelActivity"],
                pb.CancelActivityRequest(namespace=namespace, id=id, reason=reason),
            )
        await self._calls.call(method, request, self._serve[action])

    def _examples(self, chosen: list[ActivityRow]) -> list[pb.Activity]:
        wall_ms = self._node.clock.wall_ms()
        return [
            wire.activity_message(
                row.key,
                row.activity,
                row.shard_id,
                now_ms=self._node.observed_ms(row.shard_id),
                wall_ms=wall_ms,
                include_payloads=False,
            )
            for row in chosen[:EXAMPLES_MAX]
        ]
