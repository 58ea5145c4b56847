"""Replies put together from parts are the replies that protobuf itself would write."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from liveness.domain.errors import LivenessError, ShuttingDown, StaleHeartbeat
from liveness.domain.worker import NO_BINDINGS, NO_PROFILE, BoundActivity, Worker, WorkerState, WorkerStatus
from liveness.server import wire
from liveness.server.errors import status_of
from liveness.server.replies import Replies, batch
from liveness.shard.shard import Outcome
from liveness.v1.service_pb2 import RecordWorkerHeartbeatsResponse
from liveness.v1.worker_pb2 import HeartbeatResult

LOST = BoundActivity("workflow", "run", "activity", 1, "queue", b"token")


PLAIN = Worker(
    number=1,
    state=WorkerState.ACTIVE,
    session_id="session",
    sequence=7,
    epoch=1,
    granted_ms=1_000,
    renewed_ms=0,
    deadline_ms=1_000,
    bindings=NO_BINDINGS,
    lost=NO_BINDINGS,
    superseded=(),
    profile=NO_PROFILE,
    status=WorkerStatus.RUNNING,
    last_error="",
    successes=0,
    errors=0,
    resync=False,
    inactive_reason=None,
    inactive_detail="",
)


@st.composite
def workers(draw):
    granted_ms = draw(st.integers(1, 3_600_000))
    renewed_ms = draw(st.integers(0, 2**45))
    return PLAIN._replace(
        epoch=draw(st.integers(1, 2**40)),
        granted_ms=granted_ms,
        renewed_ms=renewed_ms,
        deadline_ms=renewed_ms + granted_ms,
        lost=draw(st.sampled_from([NO_BINDINGS, {LOST.id: LOST}])),
        resync=draw(st.booleans()),
    )


@given(st.lists(st.tuples(workers(), st.integers(0, 4_000_000_000_000)), min_size=1, max_size=20))
def test_a_renewals_reply_reads_as_protobuf_would_have_written_it(renewals):
    """One `Replies` serves them all, so that nothing kept from an earlier reply may leak into a later one."""
    replies = Replies(Random(1))
    low, high = wire.NEXT_HEARTBEAT_SHARE
    for worker, wall_ms in renewals:
        got = HeartbeatResult.FromString(replies.renewed(worker, wall_ms))
        after_ms = got.next_heartbeat_after.ToNanoseconds() / 1e6
        assert low * worker.granted_ms - 1 <= after_ms <= high * worker.granted_ms + 1
        expected = wire.heartbeat_result(
            Outcome.RENEWED, worker, now_ms=worker.renewed_ms, wall_ms=wall_ms, jitter=low
        )
        expected.next_heartbeat_after.CopyFrom(got.next_heartbeat_after)
        assert got == expected


def test_the_time_to_the_next_heartbeat_varies():
    replies = Replies(Random(1))
    worker = PLAIN._replace(granted_ms=30_000)
    seen = {
        HeartbeatResult.FromString(replies.renewed(worker, 1)).next_heartbeat_after.nanos for _ in range(50)
    }
    assert len(seen) == 50


refusals = st.sampled_from([StaleHeartbeat(sequence=1, last_sequence=2), ShuttingDown()])


@given(st.lists(st.one_of(workers(), refusals), max_size=30))
def test_a_batch_reads_as_protobuf_would_have_written_it(answers):
    """Short and long results and refusals, in order."""
    replies = Replies(Random(1))
    given_answers = [a if isinstance(a, LivenessError) else replies.renewed(a, 1_000) for a in answers]
    expected = RecordWorkerHeartbeatsResponse()
    for answer in given_answers:
        if isinstance(answer, LivenessError):
            expected.items.add().status.CopyFrom(status_of(answer))
        else:
            expected.items.add().result.CopyFrom(HeartbeatResult.FromString(answer))
    assert RecordWorkerHeartbeatsResponse.FromString(batch(given_answers)) == expected
