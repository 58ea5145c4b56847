"""ListTaskQueues: what waits in each task queue, who polls it, and how fast it moves. Each node counts its own shards and
polls; the called node adds up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

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
from liveness.slices import build_in_slices
from liveness.v1 import activity_pb2 as pb

QUEUES_MAX = 1_000
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
        self._rates: dict[tuple[QueueName, str], SuccessRates] = {}

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
            if len(self._rates) > RATED_QUEUES_MAX * len(set(_MOVES.values())):
                self._rates.clear()
            for name, count in counts.items():
                self._rates.setdefault(name, SuccessRates()).add(count, now_ms)

    def per_minute(self, name: QueueName, what: str) -> int:
        rates = self._rates.get((name, what))
        return 0 if rates is None else rates.per_minute(self._node.clock.monotonic_ms())

    def names(self, namespace: str) -> set[QueueName]:
        return {name for name, what in self._rates if name[0] == namespace and self.per_minute(name, what)}


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
        own = await build_in_slices(sorted(self._names(namespace)), self._describe)
        shares = [pb.ListTaskQueuesResponse(task_queues=own)]
        if self._all_nodes is not None:
            shares += await self._all_nodes.call_other_nodes(
                "ActivityService/ListTaskQueues", request, pb.ListTaskQueuesResponse, skip_failed=True
            )
        return pb.ListTaskQueuesResponse(task_queues=_merge(shares))

    def _names(self, namespace: str) -> set[QueueName]:
        names = self._matching.polled_queues(namespace) | self._rates.names(namespace)
        for shard in self._node.shards():
            backlog = shard.activities.backlog
            names.update((key.namespace, key.task_queue) for key in backlog.available)
            names.update((*backlog.held, *backlog.waiting))
        return {name for name in names if name[0] == namespace}

    def _describe(self, name: QueueName) -> pb.TaskQueue:
        found = pb.TaskQueue(task_queue=name[1])
        oldest_ms = -1
        for shard in self._node.shards():
            backlog, now_ms = shard.activities.backlog, shard.now_ms()
            found.held += backlog.held[name]
            found.waiting += backlog.waiting[name]
            for key, waiting in backlog.available.items():
                if (key.namespace, key.task_queue) == name:
                    found.available += len(waiting)
                    oldest_ms = max(oldest_ms, now_ms - next(iter(waiting.values())))
        if oldest_ms >= 0:
            found.oldest.CopyFrom(duration(oldest_ms))
        found.polls, found.pollers = self._matching.poll_counts(name)
        for what in ("added", "started", "completed", "failed"):
            setattr(found, f"{what}_per_minute", self._rates.per_minute(name, what))
        return found


def _merge(shares: Sequence[pb.ListTaskQueuesResponse]) -> list[pb.TaskQueue]:
    by_name: dict[str, pb.TaskQueue] = {}
    for queue in (queue for share in shares for queue in share.task_queues):
        known = by_name.setdefault(queue.task_queue, queue)
        if known is queue:
            continue
        for field in _SUMMED:
            setattr(known, field, getattr(known, field) + getattr(queue, field))
        if queue.HasField("oldest") and queue.oldest.ToNanoseconds() >= known.oldest.ToNanoseconds():
            known.oldest.CopyFrom(queue.oldest)
    return [by_name[name] for name in sorted(by_name)][:QUEUES_MAX]
