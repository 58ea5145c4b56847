"""Builds heartbeat replies as bytes.

Nearly all replies answer plain renewals, and these differ only in epoch and terms, time, and jitter. Concatenated
protobuf messages parse as one merged message, so such a reply is concatenated from parts that were serialized before.
`tests/unit/server/test_reply_builders.py` checks that the result equals what protobuf itself writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, islice
from random import Random

from liveness.domain.errors import LivenessError
from liveness.domain.worker import Worker
from liveness.engine.shard import HeartbeatOutcome
from liveness.rpc.status import status_of
from liveness.server import wire
from liveness.v1.service_pb2 import RecordWorkerHeartbeatsResponse
from liveness.v1.worker_pb2 import HeartbeatResult

CACHED_PARTS_MAX = 4_096
JITTER_STEPS = 64
ITEM_JITTERS = 8
_TAG = 0x0A  # field 1, length-delimited: both `items` in the response and `result` in an item
_SHORT_MAX = 125
# The prefix of a short result in a batch: the item's tag and length, the result's tag and length.
_SHORT_FRAMES = [bytes((_TAG, size + 2, _TAG, size)) for size in range(_SHORT_MAX + 1)]


class ReplyBuilder:
    """Builds serialized HeartbeatResults."""

    jitters_per_moment = 1

    def __init__(self, random: Random, *, paused: bool = False) -> None:
        """`paused`: the whole namespace of the workers is paused."""
        self._random = random
        self._paused = paused
        self._wall_ms = -1
        self._prepared: dict[tuple[int, int], Iterator[bytes]] = {}
        """Replies of the current millisecond, by epoch and granted lease."""
        self._terms: dict[tuple[int, int], bytes] = {}
        self._jitters: dict[int, Iterator[bytes]] = {}

    def build_renewal(self, worker: Worker, wall_ms: int) -> bytes:
        """Returns the reply to a plain renewal that was decided at `wall_ms`."""
        standing = worker.standing
        if worker.resync or worker.lost or standing.paused or standing.draining or self._paused:
            return self._build_full(HeartbeatOutcome.RENEWED, worker, worker.renewed_ms, wall_ms)
        if wall_ms != self._wall_ms:
            self._wall_ms = wall_ms
            self._prepared = {}
        return next(self._prepared.get((worker.epoch, worker.granted_ms)) or self._prepare(worker, wall_ms))

    def build(self, outcome: HeartbeatOutcome, worker: Worker, now_ms: int, wall_ms: int) -> bytes:
        """Returns the reply to any heartbeat; `now_ms` on the shard's clock and `wall_ms` are the same moment."""
        if outcome is HeartbeatOutcome.RENEWED:
            return self.build_renewal(worker, wall_ms)
        return self._build_full(outcome, worker, now_ms, wall_ms)

    def _build_full(self, outcome: HeartbeatOutcome, worker: Worker, now_ms: int, wall_ms: int) -> bytes:
        jitter = self._random.uniform(*wire.NEXT_HEARTBEAT_SHARE)
        result = wire.heartbeat_result(
            outcome, worker, now_ms=now_ms, wall_ms=wall_ms, jitter=jitter, paused=self._paused
        )
        return self._frame(result.SerializeToString())

    def _frame(self, result: bytes) -> bytes:
        return result

    def _prepare(self, worker: Worker, wall_ms: int) -> Iterator[bytes]:
        key = worker.epoch, worker.granted_ms
        if len(self._terms) >= CACHED_PARTS_MAX or len(self._jitters) >= CACHED_PARTS_MAX:
            self._terms, self._jitters = {}, {}
        if key not in self._terms:
            self._terms[key] = wire.lease_terms(HeartbeatOutcome.RENEWED, worker).SerializeToString()
        if worker.granted_ms not in self._jitters:
            self._jitters[worker.granted_ms] = cycle(self._make_jitters(worker.granted_ms))
        moment = HeartbeatResult(
            lease_deadline=wire.timestamp(wall_ms + worker.granted_ms), server_time=wire.timestamp(wall_ms)
        ).SerializeToString()
        prefix = self._terms[key] + moment
        jitters = islice(self._jitters[worker.granted_ms], self.jitters_per_moment)
        prepared = self._prepared[key] = cycle([self._frame(prefix + jitter) for jitter in jitters])
        return prepared

    def _make_jitters(self, granted_ms: int) -> list[bytes]:
        """Returns evenly spread fractions of the lease in random order."""
        low, high = wire.NEXT_HEARTBEAT_SHARE
        shares = [low + (high - low) * (step + 0.5) / JITTER_STEPS for step in range(JITTER_STEPS)]
        self._random.shuffle(shares)
        return [
            HeartbeatResult(
                next_heartbeat_after=wire.fraction_of_lease(granted_ms, share)
            ).SerializeToString()
            for share in shares
        ]


class ItemReplyBuilder(ReplyBuilder):
    """Frames each result as an item of a RecordWorkerHeartbeatsResponse: the joined items are the response."""

    jitters_per_moment = ITEM_JITTERS

    def _frame(self, result: bytes) -> bytes:
        if len(result) <= _SHORT_MAX:
            return _SHORT_FRAMES[len(result)] + result
        response = RecordWorkerHeartbeatsResponse()
        response.items.add().result.MergeFromString(result)
        return response.SerializeToString()


def refused_item(error: LivenessError) -> bytes:
    response = RecordWorkerHeartbeatsResponse()
    response.items.add().status.CopyFrom(status_of(error))
    return response.SerializeToString()
