"""ListTaskQueues: what waits in each task queue, who polls it, and how fast it moves. Each node counts its own shards and
polls; the called node adds up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nsmallest

from liveness.dispatch.matching import Matching
from liveness.domain.events import (
    ActivityAttemptFailed,
    ActivityCancelled,
    ActivityCompleted,
    ActivityEvent,
    ActivityFailed,
    ActivityMadeAvailable,
    ActivityScheduled,
    ActivityStarted,
    ActivityTimedOut,
)
from liveness.domain.keys import ActivityKey
from liveness.engine.listener import NodeListener
from liveness.engine.node import Node
from liveness.engine.shard import PreparedCommit
from liveness.engine.success_rates import SuccessRates
from liveness.server.all_nodes import AllNodes
from liveness.server.validation import require_identifier
from liveness.server.wire import duration
from liveness.slices import build_in_slices, end_slice, in_slices
from liveness.v1 import activity_pb2 as pb

QUEUES_MAX = 1_000
KEYS_PER_SLICE = 2_000
RATED_PER_SLICE = 1_000
RATED_QUEUES_MAX = 10_000
"""Rates are kept for so many task queues of a node; beyond that, all begin anew."""

QueueName = tuple[str, str]
_SUMMED = (
    "available", "waiting", "held", "polls", "pollers", "added_per_minute", "started_per_minute", "completed_per_minute",
    "failed_per_minute",
)  # fmt: skip


class QueueRates(NodeListener):
    """Counts what becomes durable, by task queue."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._rates: dict[QueueName, dict[str, SuccessRates]] = {}

    def committed(self, commits: Sequence[PreparedCommit]) -> None:
        counts: Counter[tuple[QueueName, str]] = Counter()
        for part in commits:
            activities = part.commit.activities
            if not activities:
                continue
            for entry in part.commit.entries:
                if entry.workflow_id is None or (what := _MOVES.get(type(entry.event))) is None:
                    continue
                event: ActivityEvent = entry.event  # type: ignore[assignment]
                key = ActivityKey(entry.namespace or "", entry.workflow_id, event.run_id, event.activity_id)
                if (activity := activities.get(key)) is not None:
                    counts[(key.namespace, activity.task_queue), what] += 1
        if counts:
            now_ms = self._node.clock.monotonic_ms()
            if len(self._rates) > RATED_QUEUES_MAX:
                self._rates.clear()
            for (name, what), count in counts.items():
                self._rates.setdefault(name, {}).setdefault(what, SuccessRates()).add(count, now_ms)

    def per_minute(self, name: QueueName, what: str) -> int:
        rates = self._rates.get(name, {}).get(what)
        return 0 if rates is None else rates.per_minute(self._node.clock.monotonic_ms())

    async def names(self, namespace: str) -> set[str]:
        """The task queues in which something moved within the last minute."""
        known = [name for name in self._rates if name[0] == namespace]
        return {
            name[1]
            async for name in in_slices(known, RATED_PER_SLICE)
            if any(self.per_minute(name, what) for what in _RATED)
        }


_MOVES = {
    ActivityScheduled: "added",
    ActivityMadeAvailable: "added",
    ActivityStarted: "started",
    ActivityCompleted: "completed",
    ActivityAttemptFailed: "failed",
    ActivityFailed: "failed",
    ActivityTimedOut: "failed",
    ActivityCancelled: "failed",
}


_RATED = ("added", "started", "completed", "failed")


class TaskQueues:
    def __init__(
        self, node: Node, matching: Matching, rates: QueueRates, all_nodes: AllNodes | None = None
    ) -> None:
        self._node = node
        self._matching = matching
        self._rates = rates
        self._all_nodes = all_nodes

    async def list(self, request: pb.ListTaskQueuesRequest) -> pb.ListTaskQueuesResponse:
        namespace = require_identifier("namespace", request.namespace)
        shares = [pb.ListTaskQueuesResponse(task_queues=await self._own(namespace))]
        if self._all_nodes is not None:
            shares += await self._all_nodes.call_other_nodes(
                "ActivityService/ListTaskQueues", request, pb.ListTaskQueuesResponse, skip_failed=True
            )
        return pb.ListTaskQueuesResponse(task_queues=await _merge(shares))

    async def _own(self, namespace: str) -> Sequence[pb.TaskQueue]:
        """The first task queues by name: those behind them are among the first of all nodes no more than of this one."""
        waiting = await self._count(namespace)
        names = (
            waiting.keys()
            | await self._matching.polled_queues(namespace)
            | await self._rates.names(namespace)
        )

        def describe(name: str) -> pb.TaskQueue:
            found = waiting.get(name, _NOTHING)
            message = pb.TaskQueue(
                task_queue=name, available=found.available, held=found.held, waiting=found.waiting
            )
            if found.oldest_ms is not None:
                message.oldest.CopyFrom(duration(found.oldest_ms))
            message.polls, message.pollers = self._matching.poll_counts((namespace, name))
            for what in _RATED:
                setattr(message, f"{what}_per_minute", self._rates.per_minute((namespace, name), what))
            return message

        return await build_in_slices(nsmallest(QUEUES_MAX, names), describe)

    async def _count(self, namespace: str) -> dict[str, _Waiting]:
        """What waits and what is held. Each shard's task queues are looked at once: there may be as many as activities."""
        found: dict[str, _Waiting] = {}
        for shard in self._node.shards():
            backlog = shard.activities.backlog
            async for key in in_slices(list(backlog.available), KEYS_PER_SLICE):
                if key.namespace == namespace and (activities := backlog.available.get(key)):
                    age_ms = shard.now_ms() - next(iter(activities.values()))
                    _of(found, key.task_queue).add_available(len(activities), age_ms)
            async for name in in_slices(list(backlog.held), KEYS_PER_SLICE):
                if name[0] == namespace:
                    _of(found, name[1]).held += backlog.held[name]
            async for name in in_slices(list(backlog.waiting), KEYS_PER_SLICE):
                if name[0] == namespace:
                    _of(found, name[1]).waiting += backlog.waiting[name]
            await end_slice()
        return found


@dataclass(slots=True)
class _Waiting:
    available: int = 0
    held: int = 0
    waiting: int = 0
    oldest_ms: int | None = None

    def add_available(self, count: int, age_ms: int) -> None:
        self.available += count
        self.oldest_ms = max(self.oldest_ms or 0, age_ms)


_NOTHING = _Waiting()


def _of(found: dict[str, _Waiting], name: str) -> _Waiting:
    known = found.get(name)
    if known is None:
        known = found[name] = _Waiting()
    return known


async def _merge(shares: Sequence[pb.ListTaskQueuesResponse]) -> list[pb.TaskQueue]:
    by_name: dict[str, pb.TaskQueue] = {}
    async for queue in in_slices((queue for share in shares for queue in share.task_queues), KEYS_PER_SLICE):
        known = by_name.setdefault(queue.task_queue, queue)
        if known is queue:
            continue
        for field in _SUMMED:
            setattr(known, field, getattr(known, field) + getattr(queue, field))
        if queue.HasField("oldest") and queue.oldest.ToNanoseconds() >= known.oldest.ToNanoseconds():
            known.oldest.CopyFrom(queue.oldest)
    return [by_name[name] for name in sorted(by_name)][:QUEUES_MAX]
