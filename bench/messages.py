"""The heartbeats that are sent: as a real worker's would be."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from liveness.v1.service_pb2 import RecordWorkerHeartbeatRequest, RecordWorkerHeartbeatsRequest
from liveness.v1.worker_pb2 import (
    HeartbeatOutcome,
    HeartbeatResult,
    WorkerHeartbeat,
    WorkerState,
    WorkerStatus,
)

NAMESPACE = "bench"
SUCCESSES_PER_BEAT = 3
LEASE_S = 3_600  # nothing may expire while it is measured


def heartbeat(number: int) -> WorkerHeartbeat:
    return WorkerHeartbeat(
        worker_instance_key=f"worker-{number:06d}-5f7c9d",
        session_id=f"2026-11-16T08:00:00-{number:08d}",
        lease_duration=Duration(seconds=LEASE_S),
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
    return batch_of(range(first, first + size))


def batch_of(numbers: Iterable[int]) -> bytes:
    beats = [heartbeat(number) for number in numbers]
    return RecordWorkerHeartbeatsRequest(namespace=NAMESPACE, heartbeats=beats).SerializeToString()


def result() -> HeartbeatResult:
    """What a plain renewal is answered with."""
    return HeartbeatResult(
        state=WorkerState.WORKER_STATE_ACTIVE,
        outcome=HeartbeatOutcome.HEARTBEAT_OUTCOME_RENEWED,
        lease_epoch=1,
        granted_lease_duration=Duration(seconds=LEASE_S),
        lease_deadline=Timestamp(seconds=1_794_803_539, nanos=250_000_000),
        server_time=Timestamp(seconds=1_794_799_939, nanos=250_000_000),
        next_heartbeat_after=Duration(seconds=1_200, nanos=123_456_789),
    )
