"""Replies assembled from cached bytes equal the messages that protobuf serialises."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from liveness.domain.errors import LivenessError, ShuttingDown, StaleHeartbeat, WorkerCleanedUp
from liveness.domain.worker import NO_BINDINGS, NO_PROFILE, BoundActivity, Worker, WorkerState, WorkerStatus
from liveness.engine.shard import HeartbeatOutcome
from liveness.rpc.status import status_of
from liveness.server import reply_builders, wire
from liveness.v1.service_pb2 import RecordWorkerHeartbeatsResponse
from liveness.v1.worker_pb2 import HeartbeatResult

HOUR_MS = 3_600_000
LOST = BoundActivity("flow", "run", "activity", 3, "queue", b"\xff" * 300)


def worker(*, epoch: int, granted_ms: int, resync: bool = False, lost: bool = False) -> Worker:
    return Worker(
        number=1,
        state=WorkerState.ACTIVE,
        session_id="s",
        sequence=1,
        epoch=epoch,
        granted_ms=granted_ms,
        renewed_ms=50,
        deadline_ms=50 + granted_ms,
        bindings=NO_BINDINGS,
        lost={LOST.id: LOST} if lost else NO_BINDINGS,
        superseded=(),
        profile=NO_PROFILE,
        status=WorkerStatus.RUNNING,
        last_error="",
        successes=0,
        errors=0,
        resync=resync,
        inactive_reason=None,
        inactive_detail="",
    )


workers = st.builds(
    worker,
    epoch=st.one_of(st.integers(1, 3), st.integers(1, 2**63 - 1)),
    granted_ms=st.one_of(st.sampled_from([1_000, 30_000]), st.integers(1_000, 24 * HOUR_MS)),
    resync=st.booleans(),
    lost=st.booleans(),
)
moments = st.integers(0, 4_102_444_800_000)


@given(st.lists(st.tuples(st.sampled_from(HeartbeatOutcome), workers, moments), max_size=20))
def test_a_built_reply_equals_the_serialised_message(
    cases: list[tuple[HeartbeatOutcome, Worker, int]],
) -> None:
    builder = reply_builders.ReplyBuilder(Random(1))
    for outcome, given_worker, wall_ms in cases:
        reply = HeartbeatResult.FromString(builder.build(outcome, given_worker, 50, wall_ms))
        expected = wire.heartbeat_result(outcome, given_worker, now_ms=50, wall_ms=wall_ms, jitter=0.33)
        share = reply.next_heartbeat_after.ToNanoseconds() / (given_worker.granted_ms * 1_000_000)
        assert 0.299 < share < 0.367
        reply.ClearField("next_heartbeat_after")
        expected.ClearField("next_heartbeat_after")
        assert reply == expected


errors = st.sampled_from(
    [
        ShuttingDown(),
        StaleHeartbeat(sequence=1, last_sequence=2),
        WorkerCleanedUp(worker="w" * 255),
    ]
)


@given(
    st.lists(st.one_of(st.tuples(st.sampled_from(HeartbeatOutcome), workers), errors), max_size=20), moments
)
def test_joined_items_equal_the_serialised_batch_response(
    cases: list[tuple[HeartbeatOutcome, Worker] | LivenessError], wall_ms: int
) -> None:
    """Short results, long results and refusals keep their order."""
    builder = reply_builders.ItemReplyBuilder(Random(1))
    parts, expected = [], RecordWorkerHeartbeatsResponse()
    for case in cases:
        if isinstance(case, LivenessError):
            parts.append(reply_builders.refused_item(case))
            expected.items.add().status.CopyFrom(status_of(case))
        else:
            parts.append(builder.build(*case, 50, wall_ms))
            result = wire.heartbeat_result(*case, now_ms=50, wall_ms=wall_ms, jitter=0.33)
            expected.items.add().result.CopyFrom(result)
    response = RecordWorkerHeartbeatsResponse.FromString(b"".join(parts))
    for item in (*response.items, *expected.items):
        if item.HasField("result"):
            item.result.ClearField("next_heartbeat_after")
    assert response == expected


def test_workers_of_one_batch_get_different_times_for_the_next_heartbeat() -> None:
    builder = reply_builders.ItemReplyBuilder(Random(1))
    parts = [
        builder.build_renewal(worker(epoch=1, granted_ms=30_000), 1_000)
        for _ in range(reply_builders.ITEM_JITTERS)
    ]
    response = RecordWorkerHeartbeatsResponse.FromString(b"".join(parts))
    after = {item.result.next_heartbeat_after.ToNanoseconds() for item in response.items}
    assert len(after) == reply_builders.ITEM_JITTERS


def test_the_caches_of_a_builder_are_bounded() -> None:
    builder = reply_builders.ReplyBuilder(Random(1))
    for number in range(reply_builders.CACHED_PARTS_MAX + 10):
        builder.build_renewal(worker(epoch=number + 1, granted_ms=1_000 + number), 1_000)
    assert len(builder._terms) <= reply_builders.CACHED_PARTS_MAX
    assert len(builder._jitters) <= reply_builders.CACHED_PARTS_MAX
