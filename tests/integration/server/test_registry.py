"""Registered components over real gRPC, on both databases: they come, go, come back, and outlive restarts."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from liveness.domain.keys import WorkerKey
from liveness.server import registry_service
from liveness.v1 import registry_service_pb2 as pb
from tests.integration.engine.engine import activity
from tests.integration.server.registry_client import NUMBER, REFUSE, RegistryClient
from tests.integration.server.server_harness import (
    ACTIVE,
    CLEANED_UP,
    INACTIVE,
    NAMESPACE,
    REGISTERED,
    RENEWED,
    REPEATED,
    RESURRECTED,
    ServerHarness,
    refusal,
)


def client_of(harness: ServerHarness) -> RegistryClient:
    harness.lift_rate_limits()
    return RegistryClient(harness.channel)


async def test_a_component_registers_beats_and_leaves(harness: ServerHarness) -> None:
    client = client_of(harness)
    registered = await client.register(
        uri="nats://host:4222",
        labels={"zone": "b"},
        capabilities=["jetstream"],
        capacity=16,
        runtime_json='{"type":"nats"}',
        host_name="host",
        process_id="17",
        interval_ms=15_000,
    )
    assert (registered.outcome, registered.session_id, registered.is_replica) == (
        REGISTERED,
        "host:17",
        False,
    )
    assert registered.next_heartbeat_after == Duration(seconds=15)
    entry = registered.entry
    assert (entry.kind, entry.name, entry.status, entry.stale) == ("broker", "nats", "ready", False)
    assert (entry.uri, entry.capacity, dict(entry.labels)) == ("nats://host:4222", 16, {"zone": "b"})
    assert await client.entry() == entry
    beat = await client.heartbeat(status="busy", sequence=1, successes=3)
    assert (beat.outcome, beat.entry.status, beat.entry.successes) == (RENEWED, "busy", 3)
    assert (await client.heartbeat(sequence=1, successes=3)).outcome == REPEATED
    assert (await harness.describe("broker:nats")).granted_lease_duration == Duration(seconds=45)
    await client.deregister(reason="done")
    gone = await client.entry()
    assert (gone.status, gone.state, gone.stale) == ("offline", INACTIVE, True)
    back = await client.heartbeat()
    assert (back.outcome, back.entry.status, back.entry.lease_epoch) == (RESURRECTED, "busy", 2)


async def test_entries_and_replicas_outlive_a_restart(harness: ServerHarness) -> None:
    client = client_of(harness)
    await client.register(session_id="a", uri="nats://a", capacity=2, lease_ms=60_000)
    assert (await client.register(session_id="b", uri="nats://b")).is_replica
    await client.register("server_api:x", session_id="c")
    await client.deregister("server_api:x", session_id="c")
    before, names = await client.entry(), await client.names()
    await harness.restart()
    client = client_of(harness)
    after = await client.entry()
    assert (after.uri, after.capacity, after.first_seen_time) == (
        before.uri,
        before.capacity,
        before.first_seen_time,
    )
    assert after.replicas == before.replicas
    assert [replica.uri for replica in after.replicas] == ["nats://b"]
    assert await client.names() == names == ["broker:nats", "server_api:x"]
    assert (await client.entry("server_api:x")).status == "offline"


async def test_a_silent_component_is_stale_then_offline_then_comes_back(harness: ServerHarness) -> None:
    client = client_of(harness)
    await client.register(interval_ms=10_000)
    await harness.advance(20_500)
    assert await client.names(stale=True) == ["broker:nats"]
    assert (await client.entry()).state == ACTIVE
    await harness.advance(10_000)
    entry = await client.entry()
    assert (entry.state, entry.status, entry.stale) == (INACTIVE, "offline", True)
    assert await client.names(status="offline") == ["broker:nats"]
    await client.heartbeat()
    assert await client.names(status="ready") == ["broker:nats"]


async def test_a_cleaned_up_component_is_in_no_list_and_comes_back_by_name(harness: ServerHarness) -> None:
    client = client_of(harness)
    await harness.configure(cleanup_delay_ms=1_000)
    await client.register(session_id="a", labels={"zone": "b"}, capacity=3)
    await client.deregister()
    await harness.advance(1_500)
    assert (await client.entry()).state == CLEANED_UP
    assert await client.names() == []
    assert not harness.server.node.registry.statuses
    back = await client.heartbeat()
    assert (back.outcome, back.entry.capacity, dict(back.entry.labels)) == (REGISTERED, 3, {"zone": "b"})
    assert (await harness.describe("broker:nats")).session_id == "a#2"
    assert (await client.heartbeat(session_id="a")).outcome == RENEWED
    assert await client.names() == ["broker:nats"]


async def test_the_end_of_a_pool_reschedules_what_it_held(harness: ServerHarness) -> None:
    client = client_of(harness)
    await client.register("worker_pool:images", session_id="a", task_queue="images")
    await harness.beat("worker_pool:images", session_id="a", sequence=1, bound_activities=[activity("x")])
    assert (await client.entry("worker_pool:images")).bound_activity_count == 1
    assert (await client.deregister("worker_pool:images")).rescheduled_activities == 1


async def test_a_second_process_is_a_replica_until_the_first_is_gone(harness: ServerHarness) -> None:
    client = client_of(harness)
    await client.register(host_name="h", process_id="1")
    second = await client.register(host_name="h", process_id="2", uri="nats://two")
    assert (second.is_replica, second.session_id, second.outcome) == (True, "h:2", 0)
    [replica] = second.entry.replicas
    assert (replica.host_name, replica.process_id, replica.uri) == ("h", "2", "nats://two")
    refused = await refusal(client.register(host_name="h", process_id="3", on_replica=REFUSE))
    assert refused.reason == "WORKER_KEY_HELD"
    assert (await client.heartbeat(session_id="h:2")).is_replica
    await client.deregister(session_id="h:1")
    taken = await client.heartbeat(session_id="h:2")
    assert (taken.is_replica, taken.outcome, taken.entry.process_id) == (False, RESURRECTED, "2")
    assert list(taken.entry.replicas) == []


async def test_a_second_process_can_get_a_number(harness: ServerHarness) -> None:
    client = client_of(harness)
    keys = [
        (await client.register(session_id=session, on_replica=NUMBER)).entry.worker_instance_key
        for session in ("a", "b", "c", "b")
    ]
    assert keys == ["broker:nats", "broker:nats-2", "broker:nats-3", "broker:nats-2"]


async def test_a_session_that_lost_the_name_renews_nothing_by_an_ordinary_heartbeat(
    harness: ServerHarness,
) -> None:
    """The short path of equal heartbeats must not outlive the session that they belong to."""
    client = client_of(harness)
    await client.register(session_id="a")
    for sequence in (1, 2):
        await harness.beat("broker:nats", session_id="a", sequence=sequence)
    await client.deregister(session_id="a")
    await client.register(session_id="b")
    refused = await refusal(harness.beat("broker:nats", session_id="a", sequence=3))
    assert refused.reason == "SESSION_SUPERSEDED"


async def test_what_a_process_counted_before_it_lost_the_name_is_counted_once_also_after_a_restart(
    harness: ServerHarness,
) -> None:
    client = client_of(harness)
    await client.register(session_id="a")
    await client.heartbeat(session_id="a", sequence=7, successes=3)
    await client.deregister(session_id="a")
    await client.register(session_id="b")
    await client.deregister(session_id="b")
    await harness.restart()
    client = client_of(harness)
    await client.register(session_id="a")
    again = await client.heartbeat(session_id="a", sequence=7, successes=3)
    assert (again.outcome, again.entry.successes) == (REPEATED, 3)
    assert (await client.heartbeat(session_id="a", sequence=8, successes=1)).entry.successes == 4


async def test_registering_counts_against_the_quota_of_workers(harness: ServerHarness) -> None:
    client = client_of(harness)
    await harness.configure(max_workers=1)
    await client.register()
    refused = await refusal(client.register("broker:other"))
    assert (refused.code, refused.reason) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "WORKER_QUOTA_EXCEEDED",
    )
    assert await client.names() == ["broker:nats"]


# -- lists


async def test_lists_filter_and_leave_plain_workers_out(harness: ServerHarness) -> None:
    client = client_of(harness)
    await harness.beat("broker:plain")
    await client.register(
        "broker:a", labels={"zone": "b", "tier": "1"}, runtime_json='{"type":"cpu","cores":4}'
    )
    await client.register("broker:b", labels={"zone": "c"}, runtime_json='{"type":"gpu"}')
    await client.register("broker-x:a", status="draining")
    await client.register("worker_pool:a")
    await client.deregister("worker_pool:a")
    assert await client.names() == ["broker-x:a", "broker:a", "broker:b", "worker_pool:a"]
    assert await client.names(kind="broker") == ["broker:a", "broker:b"]
    assert await client.names(status="draining") == ["broker-x:a"]
    assert await client.names(status="offline") == await client.names(stale=True) == ["worker_pool:a"]
    assert await client.names(labels={"zone": "b", "tier": "1"}) == ["broker:a"]
    assert await client.names(labels={"zone": "b", "tier": "2"}) == []
    assert await client.names(runtime={"type": "cpu", "cores": "4"}) == ["broker:a"]
    assert await client.names(runtime={"cores": "5"}) == []
    assert (await refusal(client.entry("broker:plain"))).reason == "REGISTRY_ENTRY_NOT_FOUND"


async def test_pages_join_to_the_whole_list(
    sqlite_harness: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page may have fewer entries than asked for, because only so many are compared with the filter."""
    client = client_of(sqlite_harness)
    keys = sorted(f"broker:{number}" for number in range(30))
    for key in keys:
        await client.register(key, labels={"even": str(int(key[7:]) % 2 == 0)})
    for examined_max in (10_000, 4):
        monkeypatch.setattr(registry_service, "EXAMINED_MAX", examined_max)
        monkeypatch.setattr(registry_service, "EXAMINED_PER_SLICE", min(examined_max, 500))
        for labels in ({}, {"even": "True"}):
            listed: list[str] = []
            token = ""
            while True:
                page = await client.page(page_size=7, page_token=token, labels=labels)
                assert len(page.entries) <= 7
                listed += [entry.worker_instance_key for entry in page.entries]
                token = page.next_page_token
                if not token:
                    break
            assert listed == [key for key in keys if not labels or int(key[7:]) % 2 == 0]
    wrong = await refusal(client.page(page_token=(await client.page(page_size=7)).next_page_token, kind="x"))
    assert wrong.reason == "PAGE_TOKEN_INVALID"


async def test_a_kind_is_found_among_others_on_every_shard(sqlite_harness: ServerHarness) -> None:
    client = client_of(sqlite_harness)
    keys = [f"{kind}:{number:02}" for kind in ("a", "b", "b-c", "c") for number in range(20)]
    for key in keys:
        await client.register(key)
    assert await client.names(kind="b") == [key for key in keys if key.startswith("b:")]
    first = await client.page(kind="c", page_size=15)
    rest = await client.page(kind="c", page_size=15, page_token=first.next_page_token)
    assert [entry.name for entry in (*first.entries, *rest.entries)] == [
        f"{number:02}" for number in range(20)
    ]


async def test_the_counts_by_kind_and_status_follow_every_change(harness: ServerHarness) -> None:
    client = client_of(harness)
    totals = harness.server.node.registry.statuses
    await client.register("broker:a")
    await client.register("broker:b", status="busy")
    await client.deregister("broker:a")
    expected = {(NAMESPACE, "broker", "offline"): 1, (NAMESPACE, "broker", "_other"): 1}
    assert dict(totals) == expected
    await harness.restart()
    assert dict(harness.server.node.registry.statuses) == expected
    await harness.forget("broker:a")
    key = WorkerKey(NAMESPACE, "broker:a")
    assert not any(key in shard.census.registry.statuses for shard in harness.server.node.shards())
    assert await client_of(harness).names() == ["broker:b"]


# -- bad input

LONG = "x" * 5_000
BAD_REGISTRATIONS: dict[str, tuple[dict[str, Any], str, str]] = {
    "no key": ({"key": ""}, "worker_instance_key", "must be set"),
    "no kind": ({"key": "nats"}, "worker_instance_key", "must be KIND:NAME"),
    "an empty kind": ({"key": ":nats"}, "worker_instance_key", "must be KIND:NAME"),
    "an empty name": ({"key": "broker:"}, "worker_instance_key", "must be KIND:NAME"),
    "a kind in capitals": ({"key": "Broker:nats"}, "worker_instance_key", "must be KIND:NAME"),
    "a supervised kind": ({"key": "worker:a:0"}, "worker_instance_key", "must have another kind than worker"),
    "a long uri": ({"uri": LONG}, "uri", "must be at most 2048 bytes"),
    "a uri with a newline": ({"uri": "a\nb"}, "uri", "must not contain control characters"),
    "a long status": ({"status": "é" * 33}, "status", "must be at most 64 bytes"),
    "the status offline": ({"status": "offline"}, "status", "must not be offline"),
    "a negative capacity": ({"capacity": -1}, "capacity", "must not be negative"),
    "runtime that is no JSON": ({"runtime_json": "{"}, "runtime_json", "must be a JSON object"),
    "runtime that is a list": ({"runtime_json": "[]"}, "runtime_json", "must be a JSON object"),
    "runtime with NaN": ({"runtime_json": '{"a":NaN}'}, "runtime_json", "must be a JSON object"),
    "runtime that is deep": ({"runtime_json": "[" * 4_000}, "runtime_json", "must be a JSON object"),
    "long runtime": ({"runtime_json": LONG}, "runtime_json", "must be at most 4096 bytes"),
    "a long session": ({"session_id": "x" * 240}, "session_id", "must be at most 200 bytes"),
    "too many labels": (
        {"labels": {str(number): "" for number in range(1_001)}},
        "labels",
        "must have at most 1000",
    ),
    "long labels": ({"labels": {"a": "x" * 20_000}}, "labels and capabilities", "must carry at most"),
    "a long host": ({"host_name": LONG}, "host_name", "must be at most 255 bytes"),
    "an unknown policy": ({"on_replica": 99}, "on_replica", "must be one of the known values"),
    "a zero interval": ({"expected_interval": Duration()}, "expected_interval", "must be more than zero"),
    "a negative lease": ({"lease_duration": Duration(seconds=-1)}, "lease_duration", "must not be negative"),
    "a huge sequence": ({"sequence": 2**63}, "sequence", "must be at most 2^63 - 1"),
}


@pytest.mark.parametrize("name", BAD_REGISTRATIONS)
async def test_a_bad_registration_is_refused_and_changes_nothing(
    sqlite_harness: ServerHarness, name: str
) -> None:
    fields, field, rule = BAD_REGISTRATIONS[name]
    refused = await refusal(RegistryClient(sqlite_harness.channel).register(**fields))
    assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    [(named, description)] = refused.violations
    assert (named, description.startswith(rule)) == (field, True), refused.message
    assert await sqlite_harness.count() == {}


BAD_CALLS: dict[str, tuple[str, dict[str, Any], str]] = {
    "a heartbeat with a long status": ("heartbeat", {"status": LONG}, "INVALID_FIELD"),
    "a heartbeat with a long error": ("heartbeat", {"last_error": LONG}, "INVALID_FIELD"),
    "a heartbeat with huge counters": ("heartbeat", {"successes": 2**41}, "INVALID_FIELD"),
    "a heartbeat of a stranger": ("heartbeat", {"session_id": "stranger"}, "SESSION_NOT_CURRENT"),
    "a heartbeat of nobody": ("heartbeat", {"key": "broker:nobody"}, "REGISTRY_ENTRY_NOT_FOUND"),
    "a goodbye with a long reason": ("deregister", {"reason": LONG}, "INVALID_FIELD"),
    "a goodbye of a stranger": ("deregister", {"session_id": "stranger"}, "SESSION_NOT_CURRENT"),
    "a goodbye of nobody": ("deregister", {"key": "broker:nobody"}, "REGISTRY_ENTRY_NOT_FOUND"),
    "an entry without a kind": ("entry", {"key": "nats"}, "INVALID_FIELD"),
    "an entry of nobody": ("entry", {"key": "broker:nobody"}, "REGISTRY_ENTRY_NOT_FOUND"),
    "a list of an impossible kind": ("page", {"kind": "A B"}, "INVALID_FIELD"),
    "a list with a long status": ("page", {"status": LONG}, "INVALID_FIELD"),
    "a list with too many labels": (
        "page",
        {"labels": {str(number): "" for number in range(101)}},
        "INVALID_FIELD",
    ),
    "a list of a huge page": ("page", {"page_size": 1_001}, "INVALID_FIELD"),
    "a list with a forged token": ("page", {"page_token": "abc"}, "PAGE_TOKEN_INVALID"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
async def test_another_bad_call_is_refused_and_changes_nothing(
    sqlite_harness: ServerHarness, name: str
) -> None:
    method, fields, reason = BAD_CALLS[name]
    client = client_of(sqlite_harness)
    await client.register(session_id="a")
    before = await client.entry()
    assert (await refusal(getattr(client, method)(**fields))).reason == reason
    assert await client.entry() == before


async def test_a_request_without_a_namespace_is_refused(sqlite_harness: ServerHarness) -> None:
    registry = RegistryClient(sqlite_harness.channel).registry
    for call, request in (
        (registry.Register, pb.RegisterRequest),
        (registry.Heartbeat, pb.HeartbeatRequest),
        (registry.Deregister, pb.DeregisterRequest),
        (registry.GetEntry, pb.GetEntryRequest),
    ):
        refused = await refusal(call(request(worker_instance_key="broker:a")))
        assert refused.violations == [("namespace", "must be set")]
    refused = await refusal(registry.ListEntries(pb.ListEntriesRequest()))
    assert refused.violations == [("namespace", "must be set")]
