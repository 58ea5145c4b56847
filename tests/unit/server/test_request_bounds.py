"""The size of a request is checked on its bytes, before protobuf parses them."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor import MethodDescriptor
from hypothesis import given
from hypothesis import strategies as st

from liveness.domain.errors import MalformedRequest, RequestTooLarge
from liveness.server.request_bounds import DEFAULT_BYTES_MAX, FIELDS_MAX, RequestBounds
from liveness.v1 import activity_pb2, admin_pb2, cluster_pb2, service_pb2, worker_pb2

METHODS = {
    method.name: method
    for file in (service_pb2, activity_pb2, admin_pb2, cluster_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
HEARTBEATS = RequestBounds(METHODS["RecordWorkerHeartbeats"])
REF = worker_pb2.ActivityRef(
    workflow_id="f" * 255, run_id="r" * 255, activity_id="a" * 255, task_queue="q" * 255
)
ACTIVITY_ID = activity_pb2.ActivityId(workflow_id="f" * 255, run_id="r" * 255, activity_id="a" * 255)
NAME = "n" * 255
PAYLOAD = b"p" * (256 * 1024)


def batch(*heartbeats: worker_pb2.WorkerHeartbeat) -> bytes:
    return service_pb2.RecordWorkerHeartbeatsRequest(
        namespace=NAME, heartbeats=heartbeats
    ).SerializeToString()


def beat(number: int = 1, **fields: object) -> worker_pb2.WorkerHeartbeat:
    return worker_pb2.WorkerHeartbeat(worker_instance_key=f"worker-{number}", session_id="s" * 36, **fields)  # type: ignore[arg-type]


def refs(count: int, token: bytes = b"") -> list[worker_pb2.ActivityRef]:
    full = worker_pb2.ActivityRef(token=token)
    full.MergeFrom(REF)
    return [full] * count


LARGEST = {
    "RecordWorkerHeartbeat": service_pb2.RecordWorkerHeartbeatRequest(
        namespace=NAME,
        heartbeat=beat(
            bound_activities=refs(1_000, b"t" * 2_048), full_bindings=True, current_job="j" * 16_000
        ),
    ),
    "RecordWorkerHeartbeats": service_pb2.RecordWorkerHeartbeatsRequest(
        namespace=NAME,
        # What the SDK sends at most: 3 MiB, and the heartbeat that exceeds it.
        heartbeats=[
            *(beat(number, current_job="j" * 3_000) for number in range(999)),
            beat(bound_activities=refs(1_000, b"t" * 2_048), full_bindings=True),
        ],
    ),
    "ScheduleActivity": activity_pb2.ScheduleActivityRequest(
        namespace=NAME, id=ACTIVITY_ID, activity_type=NAME, task_queue=NAME, input=PAYLOAD
    ),
    "CompleteActivity": activity_pb2.CompleteActivityRequest(
        namespace=NAME, id=ACTIVITY_ID, worker_instance_key=NAME, result=PAYLOAD
    ),
    "ClaimActivity": activity_pb2.ClaimActivityRequest(namespace=NAME, id=ACTIVITY_ID, input=PAYLOAD),
    "PollActivity": activity_pb2.PollActivityRequest(namespace=NAME, activity_types=[NAME] * 1_000),
    "WatchEvents": service_pb2.WatchEventsRequest(resume_token="t" * 250_000),
    "FailActivity": activity_pb2.FailActivityRequest(namespace=NAME, id=ACTIVITY_ID, message="m" * 4_096),
    "LookUpWorkers": cluster_pb2.LookUpWorkersRequest(namespace=NAME, worker_instance_keys=[NAME] * 1_000),
    "LookAtHolders": cluster_pb2.LookAtHoldersRequest(
        questions=[
            cluster_pb2.LookAtHoldersRequest.Question(
                namespace=NAME, worker_instance_key=NAME, id=ACTIVITY_ID
            )
        ]
        * 1_000
    ),
    "FindNotHeld": cluster_pb2.FindNotHeldRequest(
        attempts=[
            cluster_pb2.HeldAttempt(namespace=NAME, worker_instance_key=NAME, id=ACTIVITY_ID, attempt=9)
        ]
        * 1_000
    ),
    "BindAttempts": cluster_pb2.BindAttemptsRequest(namespace=NAME, activities=refs(100, b"t" * 2_048)),
    "Hint": cluster_pb2.HintRequest(
        node_id=NAME,
        owned=[cluster_pb2.ShardRoute(shard_id=number, node_id=NAME, epoch=2**40) for number in range(4_096)],
        offers=[
            cluster_pb2.QueueOffer(namespace=NAME, task_queue=NAME, activity_types=[NAME])
            for _ in range(1_000)
        ],
    ),
}


@pytest.mark.parametrize("name", LARGEST)
def test_the_largest_request_that_is_valid_gets_through(name: str) -> None:
    assert RequestBounds(METHODS[name]).check(LARGEST[name].SerializeToString()) is None


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: str(method.name))
def test_every_method_has_a_limit_of_bytes(method: MethodDescriptor) -> None:
    error = RequestBounds(method).check(bytes(7 * 1024 * 1024))
    assert isinstance(error, RequestTooLarge)
    assert method.name in str(error)


def test_a_method_that_carries_no_list_takes_64_kib() -> None:
    bounds = RequestBounds(METHODS["DescribeWorker"])
    assert bounds.check(bytes(DEFAULT_BYTES_MAX)) is None
    refused = bounds.check(bytes(DEFAULT_BYTES_MAX + 1))
    assert str(refused) == "The request has 65537 bytes; DescribeWorker takes at most 65536."


def test_a_frontend_may_concatenate_a_thousand_single_requests() -> None:
    single = service_pb2.RecordWorkerHeartbeatRequest(namespace=NAME, heartbeat=beat()).SerializeToString()
    assert HEARTBEATS.check(single * 1_000) is None


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x12\x00" * 3_000_000,
        batch(beat()) + b"\x12\x00" * 2_010 + batch(beat(current_job="j" * 70_000)),
        batch(beat(bound_activities=[worker_pb2.ActivityRef()] * (FIELDS_MAX + 1))),
        batch(beat(capabilities=[""] * (FIELDS_MAX + 1))),
        batch(*[beat(unbound_activities=[worker_pb2.ActivityRef()] * 500)] * 300),
        # The same field, set again and again.
        batch(beat()) + worker_pb2.ActivityRef(workflow_id="").SerializeToString() + b"\x0a\x00" * 50_000,
    ],
    ids=["heartbeats", "heartbeats among others", "bindings", "capabilities", "bindings of many", "repeated"],
)
def test_too_many_fields_are_refused(request_bytes: bytes) -> None:
    assert isinstance(HEARTBEATS.check(request_bytes), RequestTooLarge)


@pytest.mark.parametrize(
    "junk", [b"\x12" + b"\xff" * 100_000, b"\x13" * 100_000, b"\x12\xff\xff\x7f", b"\xff" * 100_000]
)
def test_bytes_that_are_no_message_are_refused_or_left_to_the_parser(junk: bytes) -> None:
    error = HEARTBEATS.check(junk + bytes(70_000))
    assert error is None or isinstance(error, MalformedRequest)


@given(st.binary(max_size=300), st.integers(0, 3))
def test_no_bytes_raise(junk: bytes, repeats: int) -> None:
    HEARTBEATS.check(junk * (300 * repeats) + junk)
