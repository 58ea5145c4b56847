"""Tenants share a server and nothing else: the same names in two namespaces never meet."""

from __future__ import annotations

from liveness.v1 import admin_pb2
from tests.server.site import ACTIVE, INACTIVE, REGISTERED, SESSION_REPLACED, Site, refusal
from tests.shard.engine import activity

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


async def test_the_same_names_live_side_by_side(site: Site) -> None:
    for first in range(0, len(TENANTS), 2):
        await _live_side_by_side(site, *TENANTS[first : first + 2])


async def _live_side_by_side(site: Site, first: tuple[str, str], second: tuple[str, str]) -> None:
    (one, key), (two, other) = first, second
    shared = activity("charge")
    assert (
        await site.beat(key, namespace=one, session_id="s1", bound_activities=[shared])
    ).outcome == REGISTERED
    assert (
        await site.beat(other, namespace=two, session_id="s1", bound_activities=[shared])
    ).outcome == REGISTERED
    assert (await site.beat(key, namespace=one, session_id="s2")).outcome == SESSION_REPLACED
    await site.advance(1)
    assert list((await site.describe(other, two)).bound_activities) == [shared], (
        "the other still holds its own"
    )
    assert (await site.describe(other, two)).lease_epoch == 1
    await site.shut_down(key, one)
    assert (await site.describe(other, two)).state == ACTIVE
    assert await site.count(one) == {INACTIVE: 1}
    assert await site.count(two) == {ACTIVE: 1}
    assert [worker.namespace for worker in (await site.listed(two)).workers] == [two]
    assert {event.namespace for event in (await site.history(other, two)).events} == {two}
    assert len((await site.history(other, two)).events) == 1
    done = admin_pb2.TASK_STATE_DONE
    assert [task.namespace for task in await site.tasks(done, namespace=one)] == [one]
    assert await site.tasks(done, namespace=two) == []


async def test_an_activity_of_the_same_name_is_another_in_another_namespace(site: Site) -> None:
    for namespace in ("orders", "billing"):
        await site.beat(namespace=namespace, bound_activities=[activity("charge")])
        await site.shut_down(namespace=namespace)
    await site.advance(1)
    for namespace in ("orders", "billing"):
        [waiting] = site.server.matching.waiting(namespace, "queue")
        assert waiting.attempt == 2


async def test_a_namespace_without_workers_sees_nothing_of_others(site: Site) -> None:
    await site.beat()
    assert (await refusal(site.describe(namespace="billing"))).reason == "WORKER_NOT_FOUND"
    assert (await refusal(site.shut_down(namespace="billing"))).reason == "WORKER_NOT_FOUND"
    assert (await refusal(site.expire(namespace="billing"))).reason == "WORKER_NOT_FOUND"
    assert (await refusal(site.history(namespace="billing"))).reason == "WORKER_NOT_FOUND"
    assert await site.count("billing") == {}
    assert not (await site.listed("billing")).workers


async def test_quotas_and_settings_of_one_namespace_bind_no_other(site: Site) -> None:
    await site.configure(max_workers=1, cleanup_delay_ms=0)
    await site.beat("a")
    assert (await refusal(site.beat("b"))).reason == "WORKER_QUOTA_EXCEEDED"
    for worker in "abc":
        await site.beat(worker, namespace="billing")
    await site.shut_down("a", "billing")
    await site.advance(1_000)
    assert (await site.describe("a", "billing")).state == INACTIVE
