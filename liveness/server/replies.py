"""Heartbeat replies as bytes.

Nearly every reply is that of a plain renewal, and those differ in little: epoch and terms, the moment, the jitter.
Protobuf messages that are written one after the other read as one merged message, so such a reply is put together from
parts that were serialized before. `tests/server/test_replies.py` holds that it equals what protobuf itself writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import cycle
from random import Random

from liveness.domain.errors import LivenessError
from liveness.domain.worker import Worker
from liveness.server import wire
from liveness.server.errors import status_of
from liveness.shard.shard import Outcome
from liveness.v1.service_pb2 import RecordWorkerHeartbeatsResponse
from liveness.v1.worker_pb2 import HeartbeatResult

KEPT_MAX = 4_096
JITTERS = 64
_ITEM_TAG = 0x0A  # field 1, length-delimited: both `items` in the response and `result` in an item
# What stands before a short result in a batch: the item's tag and length, the result's tag and length.
_SHORT_RESULT_MAX = 125
_SHORT_FRAMES = [bytes((_ITEM_TAG, size + 2, _ITEM_TAG, size)) for size in range(_SHORT_RESULT_MAX + 1)]


class Replies:
    def __init__(self, random: Random) -> None:
        self._random = random
        self._wall_ms = -1
        self._begins: dict[tuple[int, int], tuple[bytes, Iterator[bytes]]] = {}
        """Of this very millisecond, by epoch and terms: all but the jitter, and the jitters to choose from."""
        self._terms: dict[tuple[int, int], bytes] = {}
        self._jitters: dict[int, Iterator[bytes]] = {}

    def renewed(self, worker: Worker, wall_ms: int) -> bytes:
        """The reply of a plain renewal decided at `wall_ms`."""
        if worker.resync or worker.lost:
            return self._whole(Outcome.RENEWED, worker, worker.renewed_ms, wall_ms)
        if wall_ms != self._wall_ms:
            self._wall_ms = wall_ms
            self._begins = {}
        begin = self._begins.get((worker.epoch, worker.granted_ms)) or self._make_begin(worker, wall_ms)
        return begin[0] + next(begin[1])

    def result(self, outcome: Outcome, worker: Worker, now_ms: int, wall_ms: int) -> bytes:
        """The reply of any heartbeat; `now_ms` on the shard's clock and `wall_ms` are the same moment."""
        if outcome is Outcome.RENEWED:
            return self.renewed(worker, wall_ms)
        return self._whole(outcome, worker, now_ms, wall_ms)

    def _whole(self, outcome: Outcome, worker: Worker, now_ms: int, wall_ms: int) -> bytes:
        jitter = self._random.uniform(*wire.NEXT_HEARTBEAT_SHARE)
        result = wire.heartbeat_result(outcome, worker, now_ms=now_ms, wall_ms=wall_ms, jitter=jitter)
        return result.SerializeToString()

    def _make_begin(self, worker: Worker, wall_ms: int) -> tuple[bytes, Iterator[bytes]]:
        key = worker.epoch, worker.granted_ms
        if len(self._terms) >= KEPT_MAX or len(self._jitters) >= KEPT_MAX:
            self._terms, self._jitters = {}, {}
        if key not in self._terms:
            self._terms[key] = wire.lease_terms(Outcome.RENEWED, worker).SerializeToString()
        if worker.granted_ms not in self._jitters:
            self._jitters[worker.granted_ms] = cycle(self._make_jitters(worker.granted_ms))
        moment = HeartbeatResult(
            lease_deadline=wire.timestamp(wall_ms + worker.granted_ms), server_time=wire.timestamp(wall_ms)
        ).SerializeToString()
        made = self._begins[key] = (self._terms[key] + moment, self._jitters[worker.granted_ms])
        return made

    def _make_jitters(self, granted_ms: int) -> list[bytes]:
        """A round of evenly spread shares of the lease in random order."""
        low, high = wire.NEXT_HEARTBEAT_SHARE
        shares = [low + (high - low) * (step + 0.5) / JITTERS for step in range(JITTERS)]
        self._random.shuffle(shares)
        return [
            HeartbeatResult(next_heartbeat_after=wire.share_of(granted_ms, share)).SerializeToString()
            for share in shares
        ]


def batch(answers: Iterable[bytes | LivenessError]) -> bytes:
    """A serialized RecordWorkerHeartbeatsResponse."""
    parts = []
    for answer in answers:
        if type(answer) is bytes and len(answer) <= _SHORT_RESULT_MAX:
            parts.append(_SHORT_FRAMES[len(answer)])
            parts.append(answer)
        else:
            parts.append(_long_item(answer))
    return b"".join(parts)


def _long_item(answer: bytes | LivenessError) -> bytes:
    response = RecordWorkerHeartbeatsResponse()
    if isinstance(answer, LivenessError):
        response.items.add().status.CopyFrom(status_of(answer))
    else:
        response.items.add().result.MergeFromString(answer)
    return response.SerializeToString()
