"""The heartbeats that the load sends, like those of a real worker."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from liveness.v1.service_pb2 import (
    RecordWorkerHeartbeatRequest,
    RecordWorkerHeartbeatsRequest,
    RecordWorkerHeartbeatsResponse,
)
from liveness.v1.worker_pb2 import (
    ActivityRef,
    HeartbeatOutcome,
    HeartbeatResult,
    WorkerHeartbeat,
    WorkerState,
    WorkerStatus,
)

NAMESPACE = "bench"
SUCCESSES_PER_BEAT = 3
CHANGES_MAX = 200
"""Bindings that may change in one heartbeat; the server rejects more."""
LEASE_S = 3_600  # longer than any measurement: no lease may expire


def heartbeat(number: int, lease_s: float = LEASE_S) -> WorkerHeartbeat:
    return WorkerHeartbeat(
        worker_instance_key=f"worker-{number:06d}-5f7c9d",
        session_id=f"2026-11-16T08:00:00-{number:08d}",
        lease_duration=Duration(nanos=round(lease_s % 1 * 1e9), seconds=int(lease_s)),
        status=WorkerStatus.WORKER_STATUS_RUNNING,
        successes=SUCCESSES_PER_BEAT,
        worker_identity=f"{1_000 + number}@host-{number % 100}",
        task_queue="orders",
        build_id="build-2026.11.1",
        sdk_name="liveness-python",
        sdk_version="0.1.0",
        host_name=f"host-{number % 100}.example",
        process_id=str(1_000 + number),
        start_time=Timestamp(seconds=1_794_799_939),
    )


def unary_request(number: int) -> bytes:
    return RecordWorkerHeartbeatRequest(namespace=NAMESPACE, heartbeat=heartbeat(number)).SerializeToString()


def batch_request(first: int, size: int) -> bytes:
    return batch_request_of(range(first, first + size))


def batch_request_of(numbers: Iterable[int]) -> bytes:
    return batch([heartbeat(number) for number in numbers])


def unary_request_of(beat: WorkerHeartbeat) -> bytes:
    return RecordWorkerHeartbeatRequest(namespace=NAMESPACE, heartbeat=beat).SerializeToString()


def batch(beats: Iterable[WorkerHeartbeat]) -> bytes:
    return RecordWorkerHeartbeatsRequest(namespace=NAMESPACE, heartbeats=beats).SerializeToString()


def activities(worker: int, indexes: Iterable[int]) -> list[ActivityRef]:
    """Return activities named as an engine names them: each with its own workflow, and run ids as long as UUIDs."""
    return [
        ActivityRef(
            workflow_id=f"order-{worker:06d}-{index:04d}",
            run_id=f"{worker:08x}-{index:04x}-4000-8000-00000000cafe",
            activity_id="charge",
            attempt=1,
        )
        for index in indexes
    ]


def registering_heartbeat(worker: int, held: int, lease_s: float = LEASE_S) -> WorkerHeartbeat:
    """Return the first heartbeat of a worker with this many activities."""
    beat = heartbeat(worker, lease_s)
    beat.full_bindings = True
    beat.bound_activities.extend(activities(worker, range(held)))
    return beat


def changes_per_heartbeat(held: int) -> int:
    """Return how many activities a heartbeat unbinds, and how many others it binds."""
    return min(max(1, held // 2), CHANGES_MAX // 2)


def alternating_heartbeats(worker: int, held: int) -> tuple[WorkerHeartbeat, WorkerHeartbeat]:
    """Return two heartbeats to send in turn after the first: each replaces half of the held activities, as far as one
    heartbeat may.
    """
    half = changes_per_heartbeat(held)
    one, other = activities(worker, range(half)), activities(worker, range(held, held + half))
    there, back = heartbeat(worker), heartbeat(worker)
    there.unbound_activities.extend(one)
    there.bound_activities.extend(other)
    back.unbound_activities.extend(other)
    back.bound_activities.extend(one)
    return there, back


def check_batch(answer: bytes) -> None:
    """Check each item: a batch is answered as a whole, and each heartbeat's result is inside."""
    for item in RecordWorkerHeartbeatsResponse.FromString(answer).items:
        if not item.HasField("result"):
            raise SystemExit(f"a heartbeat of a batch was refused: {item}")


def result() -> HeartbeatResult:
    """Return the answer to a plain renewal."""
    return HeartbeatResult(
        state=WorkerState.WORKER_STATE_ACTIVE,
        outcome=HeartbeatOutcome.HEARTBEAT_OUTCOME_RENEWED,
        lease_epoch=1,
        granted_lease_duration=Duration(seconds=LEASE_S),
        lease_deadline=Timestamp(seconds=1_794_803_539, nanos=250_000_000),
        server_time=Timestamp(seconds=1_794_799_939, nanos=250_000_000),
        next_heartbeat_after=Duration(seconds=1_200, nanos=123_456_789),
    )
