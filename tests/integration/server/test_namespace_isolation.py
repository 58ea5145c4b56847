"""Namespaces are isolated: equal names in two namespaces never affect each other."""

from __future__ import annotations

from liveness.v1 import admin_pb2
from tests.integration.engine.engine import activity
from tests.integration.server.server_harness import (
    ACTIVE,
    INACTIVE,
    REGISTERED,
    SESSION_REPLACED,
    ServerHarness,
    refusal,
)

# Pairs that would collide if key parts were joined with a separator.
TENANTS = [
    ("orders", "w"),
    ("billing", "w"),
    ("a/b", "c"),
    ("a", "b/c"),
    ("x:y", "z"),
    ("x", "y:z"),
    ("pq", "r"),
    ("p", "qr"),
]


async def test_workers_with_equal_names_in_two_namespaces_are_independent(harness: ServerHarness) -> None:
    for first in range(0, len(TENANTS), 2):
        await _check_independent(harness, *TENANTS[first : first + 2])


async def _check_independent(harness: ServerHarness, first: tuple[str, str], second: tuple[str, str]) -> None:
    (one, key), (two, other) = first, second
    shared = activity("charge")
    assert (
        await harness.beat(key, namespace=one, session_id="s1", bound_activities=[shared])
    ).outcome == REGISTERED
    assert (
        await harness.beat(other, namespace=two, session_id="s1", bound_activities=[shared])
    ).outcome == REGISTERED
    assert (await harness.beat(key, namespace=one, session_id="s2")).outcome == SESSION_REPLACED
    await harness.advance(1)
    assert list((await harness.describe(other, two)).bound_activities) == [shared], (
        "the other worker keeps its binding"
    )
    assert (await harness.describe(other, two)).lease_epoch == 1
    await harness.shut_down(key, one)
    assert (await harness.describe(other, two)).state == ACTIVE
    assert await harness.count(one) == {INACTIVE: 1}
    assert await harness.count(two) == {ACTIVE: 1}
    assert [worker.namespace for worker in (await harness.listed(two)).workers] == [two]
    assert {event.namespace for event in (await harness.history(other, two)).events} == {two}
    assert len((await harness.history(other, two)).events) == 1
    done = admin_pb2.TASK_STATE_DONE
    assert [task.namespace for task in await harness.tasks(done, namespace=one)] == [one]
    assert await harness.tasks(done, namespace=two) == []


async def test_activities_with_equal_names_in_two_namespaces_are_independent(harness: ServerHarness) -> None:
    for namespace in ("orders", "billing"):
        await harness.beat(namespace=namespace, bound_activities=[activity("charge")])
        await harness.shut_down(namespace=namespace)
    await harness.advance(1)
    for namespace in ("orders", "billing"):
        [available_activities] = harness.server.matching.available_activities(namespace, "queue")
        assert available_activities.attempt == 2


async def test_queries_in_one_namespace_return_nothing_of_another(harness: ServerHarness) -> None:
    await harness.beat()
    assert (await refusal(harness.describe(namespace="billing"))).reason == "WORKER_NOT_FOUND"
    assert (await refusal(harness.shut_down(namespace="billing"))).reason == "WORKER_NOT_FOUND"
    assert (await refusal(harness.expire(namespace="billing"))).reason == "WORKER_NOT_FOUND"
    assert (await refusal(harness.history(namespace="billing"))).reason == "WORKER_NOT_FOUND"
    assert await harness.count("billing") == {}
    assert not (await harness.listed("billing")).workers


async def test_quotas_and_settings_apply_only_to_their_namespace(harness: ServerHarness) -> None:
    await harness.configure(max_workers=1, cleanup_delay_ms=0)
    await harness.beat("a")
    assert (await refusal(harness.beat("b"))).reason == "WORKER_QUOTA_EXCEEDED"
    for worker in "abc":
        await harness.beat(worker, namespace="billing")
    await harness.shut_down("a", "billing")
    await harness.advance(1_000)
    assert (await harness.describe("a", "billing")).state == INACTIVE
