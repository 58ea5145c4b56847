"""Heartbeat replies as bytes.

Nearly every reply is that of a plain renewal, and those differ in little: epoch and terms, the moment, the jitter.
Protobuf messages that are written one after the other read as one merged message, so such a reply is put together from
parts that were serialized before. `tests/server/test_replies.py` holds that it equals what protobuf itself writes.
"""

from __future__ import annotations

from collections.abc import Iterable
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
JITTER_BITS = 6
_ITEM_TAG = 0x0A  # field 1, length-delimited: both `items` in the response and `result` in an item
# What stands before a short result in a batch: the item's tag and length, the result's tag and length.
_SHORT_RESULT_MAX = 125
_SHORT_FRAMES = [bytes((_ITEM_TAG, size + 2, _ITEM_TAG, size)) for size in range(_SHORT_RESULT_MAX + 1)]


class Replies:
    """The replies of one moment share what the moment decides: `begin` one for each call."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._terms: dict[tuple[int, int], bytes] = {}
        self._jitters: dict[int, list[bytes]] = {}
        self._wall_ms = -1
        self._moments: dict[int, bytes] = {}

    def renewed(self, worker: Worker, wall_ms: int) -> bytes:
        """The reply of a plain renewal decided at `wall_ms`."""
        granted_ms = worker.granted_ms
        terms = self._terms.get((worker.epoch, granted_ms)) or self._make_terms(worker)
        if wall_ms != self._wall_ms:
            self._wall_ms = wall_ms
            self._moments = {}
        moment = self._moments.get(granted_ms) or self._make_moment(granted_ms, wall_ms)
        jitters = self._jitters.get(granted_ms) or self._make_jitters(granted_ms)
        return terms + moment + jitters[self._random.getrandbits(JITTER_BITS)]

    def result(self, outcome: Outcome, worker: Worker, now_ms: int, wall_ms: int) -> bytes:
        if outcome is Outcome.RENEWED and not worker.resync and not worker.lost:
            return self.renewed(worker, wall_ms)
        jitter = self._random.uniform(*wire.NEXT_HEARTBEAT_SHARE)
        return wire.heartbeat_result(
            outcome, worker, now_ms=now_ms, wall_ms=wall_ms, jitter=jitter
        ).SerializeToString()

    def _make_terms(self, worker: Worker) -> bytes:
        message = wire.lease_terms(Outcome.RENEWED, worker)
        if len(self._terms) >= KEPT_MAX:
            self._terms.clear()
        made = self._terms[worker.epoch, worker.granted_ms] = message.SerializeToString()
        return made

    def _make_moment(self, granted_ms: int, wall_ms: int) -> bytes:
        message = HeartbeatResult(
            lease_deadline=wire.timestamp(wall_ms + granted_ms), server_time=wire.timestamp(wall_ms)
        )
        made = self._moments[granted_ms] = message.SerializeToString()
        return made

    def _make_jitters(self, granted_ms: int) -> list[bytes]:
        if len(self._jitters) >= KEPT_MAX:
            self._jitters.clear()
        low, high = wire.NEXT_HEARTBEAT_SHARE
        shares = (low + (high - low) * (step + 0.5) / JITTERS for step in range(JITTERS))
        made = self._jitters[granted_ms] = [
            HeartbeatResult(next_heartbeat_after=wire.share_of(granted_ms, share)).SerializeToString()
            for share in shares
        ]
        return made


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
