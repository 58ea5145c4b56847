"""Calls between nodes are validated as those of clients are: an invalid one is refused and changes nothing."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from liveness.telemetry.sample_ring import RETENTION_MS
from liveness.v1 import activity_pb2, cluster_pb2, worker_pb2
from liveness.v1.cluster_pb2_grpc import ClusterServiceStub
from tests.integration.server.server_harness import NAMESPACE, SHARDS, ServerHarness, refusal

WORKER: Any = {"namespace": NAMESPACE, "worker_instance_key": "w"}
ID = activity_pb2.ActivityId(workflow_id="f", run_id="r", activity_id="a")
NUL_ID = activity_pb2.ActivityId(workflow_id="f\0", run_id="r", activity_id="a")


def ref(**fields: Any) -> worker_pb2.ActivityRef:
    return worker_pb2.ActivityRef(**{"workflow_id": "f", "run_id": "r", "activity_id": "a", **fields})


def hint(**fields: Any) -> cluster_pb2.HintRequest:
    return cluster_pb2.HintRequest(**{"node_id": "n", "address": "127.0.0.1:1", **fields})


INVALID: dict[str, tuple[str, Any, str]] = {
    "a NUL in a binding": (
        "BindAttempts",
        cluster_pb2.BindAttemptsRequest(**WORKER, activities=[ref(workflow_id="f\0")]),
        "activities.workflow_id",
    ),
    "an attempt at the limit": (
        "BindAttempts",
        cluster_pb2.BindAttemptsRequest(**WORKER, activities=[ref(attempt=2**31 - 1)]),
        "activities.attempt",
    ),
    "too many bindings": (
        "BindAttempts",
        cluster_pb2.BindAttemptsRequest(**WORKER, activities=[ref()] * 1_001),
        "activities",
    ),
    "no worker": (
        "BindAttempts",
        cluster_pb2.BindAttemptsRequest(namespace=NAMESPACE),
        "worker_instance_key",
    ),
    "a NUL to unbind": (
        "UnbindAttempt",
        cluster_pb2.UnbindAttemptRequest(**WORKER, id=NUL_ID),
        "id.workflow_id",
    ),
    "a negative attempt": (
        "UnbindAttempt",
        cluster_pb2.UnbindAttemptRequest(**WORKER, id=ID, attempt=-1),
        "attempt",
    ),
    "a NUL to take back": (
        "TakeBack",
        cluster_pb2.TakeBackRequest(**WORKER, activities=[ref(run_id="\0")]),
        "activities.run_id",
    ),
    "too many keys": (
        "LookUpWorkers",
        cluster_pb2.LookUpWorkersRequest(namespace=NAMESPACE, worker_instance_keys=["w"] * 1_001),
        "worker_instance_keys",
    ),
    "a question without an activity": (
        "LookAtHolders",
        cluster_pb2.LookAtHoldersRequest(questions=[cluster_pb2.LookAtHoldersRequest.Question(**WORKER)]),
        "id.workflow_id",
    ),
    "an empty attempt": (
        "FindNotHeld",
        cluster_pb2.FindNotHeldRequest(attempts=[cluster_pb2.HeldAttempt()]),
        "namespace",
    ),
    "too many activities": (
        "HandOut",
        cluster_pb2.HandOutRequest(**WORKER, task_queue="q", max_activities=2**31 - 1),
        "max_activities",
    ),
    "no namespace": ("ReturnSlots", cluster_pb2.ReturnSlotsRequest(), "namespace"),
    "a time before all": (
        "CountDeaths",
        cluster_pb2.CountDeathsRequest(**WORKER, wall_ms=-(2**63)),
        "wall_ms",
    ),
    "a range without end": ("GetFleetShare", cluster_pb2.GetFleetShareRequest(range_ms=2**62), "range_ms"),
    "a range beyond retention": (
        "GetFleetShare",
        cluster_pb2.GetFleetShareRequest(range_ms=RETENTION_MS + 1),
        "range_ms",
    ),
    "a hint from nobody": ("Hint", cluster_pb2.HintRequest(address="a:1"), "node_id"),
    "a shard to wake": ("Hint", hint(wake_shards=[SHARDS]), "wake_shards"),
    "a shard released": ("Hint", hint(released=[-1]), "released"),
    "a shard owned": (
        "Hint",
        hint(owned=[cluster_pb2.ShardRoute(shard_id=2**31 - 1, node_id="n", epoch=1)]),
        "owned.shard_id",
    ),
    "a head": ("Hint", hint(heads=[cluster_pb2.LogHead(shard_id=SHARDS, sequence=1)]), "heads.shard_id"),
    "a sequence": ("Hint", hint(heads=[cluster_pb2.LogHead(sequence=2**63)]), "heads.sequence"),
    "deaths": ("Hint", hint(struck=[cluster_pb2.Struck(namespace="n", workers=-1)]), "struck.workers and of"),
    "an offer": ("Hint", hint(offers=[cluster_pb2.QueueOffer(namespace="\0")]), "offers.namespace"),
}


@pytest.mark.parametrize("name", INVALID)
async def test_an_invalid_call_is_refused_with_its_field_and_changes_nothing(
    harness: ServerHarness, name: str
) -> None:
    await harness.beat("w")
    before = await harness.dump("shards", "audit")
    method, request, field = INVALID[name]
    refused = await refusal(getattr(ClusterServiceStub(harness.cluster_channel), method)(request, timeout=10))
    assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert refused.fields["field"] == field
    assert await harness.dump("shards", "audit") == before
