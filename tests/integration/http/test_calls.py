"""Every call over HTTP has the same effect as over gRPC, with the names of the contract."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import quote

import pytest
from google.protobuf.descriptor import MethodDescriptor

from liveness.http.endpoints import Endpoint, endpoints_of
from liveness.http.fields import FieldPath
from liveness.http.openapi import SERVICES
from liveness.v1 import worker_pb2
from tests.integration.http.http_client import JSON, Client
from tests.integration.http.http_harness import HttpHarness

METHODS: list[MethodDescriptor] = [method for service in SERVICES for method in service.methods]
BINDINGS = list(endpoints_of(SERVICES))
KNOWN = {
    "namespace": "orders",
    "worker_instance_key": "w",
    "heartbeat.worker_instance_key": "w",
    "id.workflow_id": "wf",
    "id.run_id": "run",
    "id.activity_id": "a",
    "task_id": "1",
    "unit": "table",
    "schedule_id": "nightly",
}


def target(endpoint: Endpoint) -> str:
    parts = [KNOWN[str(part)] if isinstance(part, FieldPath) else part for part in endpoint.segments]
    said = set(map(str, endpoint.variables))
    # A path variable of one endpoint is a query parameter of another.
    asked = {name for each in BINDINGS if each.method is endpoint.method for name in map(str, each.variables)}
    query = (
        "&".join(f"{name}={KNOWN[name]}" for name in sorted(asked - said)) if endpoint.verb == "GET" else ""
    )
    return "/" + "/".join(parts) + (f"?{query}" if query else "")


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_every_call_except_the_bidirectional_stream_has_an_endpoint(method: MethodDescriptor) -> None:
    assert any(endpoint.method is method for endpoint in BINDINGS) != method.client_streaming


def test_no_two_calls_share_an_endpoint() -> None:
    endpoints = [(endpoint.verb, endpoint.template) for endpoint in BINDINGS]
    assert len(set(endpoints)) == len(endpoints) > 40


def test_exactly_the_reading_calls_use_get() -> None:
    for endpoint in BINDINGS:
        reads = endpoint.method.name.startswith(
            ("Get", "List", "Describe", "Count", "Watch", "Query", "Tune", "WhoAmI", "CanI")
        )
        assert (endpoint.verb == "GET") == reads, endpoint.method.name


@pytest.mark.parametrize(
    "endpoint",
    [each for each in BINDINGS if each.verb == "GET" and not each.method.server_streaming],
    ids=lambda endpoint: endpoint.template,
)
async def test_every_get_endpoint_answers(http_harness: HttpHarness, endpoint: Endpoint) -> None:
    await http_harness.harness.beat("w", task_queue="q")
    id = {name.removeprefix("id."): KNOWN[name] for name in KNOWN if name.startswith("id.")}
    await http_harness.client.post("/v1/namespaces/orders/activities", {"id": id, "task_queue": "q"})
    answer = await http_harness.client.ask("GET", target(endpoint))
    if endpoint.method.name == "GetDeathCertificate":
        assert answer.error["reason"] == "DEATH_NOT_FOUND"  # the worker is alive
        return
    if endpoint.method.name in ("GetComponent", "GetComponentLogs", "GetEntry"):
        assert answer.error["reason"] == "INVALID_FIELD"  # the worker is no component
        return
    if endpoint.method.name == "GetProgress":
        assert answer.error["reason"] == "UNIT_NOT_FOUND"  # nobody has reported
        return
    if endpoint.method.name == "GetSchedule":
        assert answer.error["reason"] == "SCHEDULE_NOT_FOUND"  # nobody has created it
        return
    if endpoint.method.name == "TuneNamespace":
        assert answer.error["reason"] == "TOO_LITTLE_HISTORY"  # no worker has died
        return
    if endpoint.method.name == "GetRelayStatus":
        assert answer.error["reason"] == "RELAY_NOT_CONFIGURED"
        return
    if endpoint.method.name == "CanI":
        assert answer.error["reason"] == "INVALID_FIELD"  # it names no role
        return
    assert answer.code == 200, answer
    shown = answer.json()
    always = [field.name for field in endpoint.method.output_type.fields if not field.has_presence]
    assert set(always) <= set(shown)


async def test_a_worker_registers_renews_and_shuts_down_over_http(client: Client) -> None:
    beat = {"session_id": "s", "sequence": "1", "task_queue": "q", "lease_duration": "5.5s"}
    worker_path = "/v1/namespaces/orders/workers/w-1"
    first = await client.post(f"{worker_path}/heartbeat", beat)
    assert first["outcome"] == "HEARTBEAT_OUTCOME_REGISTERED"
    assert (first["granted_lease_duration"], first["lease_epoch"]) == ("5.500s", "1")
    second = await client.post(f"{worker_path}/heartbeat", {**beat, "sequence": 2})
    assert second["outcome"] == "HEARTBEAT_OUTCOME_RENEWED"
    assert (await client.get(worker_path))["worker"]["task_queue"] == "q"
    gone = await client.post(f"{worker_path}/shutdown", {"reason": "done"})
    assert gone == {"state": "WORKER_STATE_INACTIVE", "rescheduled_activities": 0}
    history = (await client.get(f"{worker_path}/history"))["events"]
    assert [event["type"] for event in history] == ["WorkerRegistered", "WorkerDeactivated"]


async def test_a_call_without_parameters_needs_no_body(http_harness: HttpHarness) -> None:
    await http_harness.harness.beat("w")
    answer = await http_harness.client.ask("POST", "/v1/namespaces/orders/workers/w/expire", JSON)
    assert (answer.code, answer.json()["state"]) == (200, "WORKER_STATE_INACTIVE")


async def test_an_activity_is_scheduled_polled_and_completed_over_http(
    http_harness: HttpHarness, client: Client
) -> None:
    await http_harness.harness.beat("w", task_queue="q", session_id="s", sequence=1)
    id = {"workflow_id": "wf", "run_id": "r", "activity_id": "a"}
    namespace_path = "/v1/namespaces/orders"
    job = {"id": id, "task_queue": "q", "input": "aGVsbG8=", "activity_type": "t"}
    assert (await client.post(f"{namespace_path}/activities", job))["created"] is True
    taken = await client.post(
        f"{namespace_path}/activities/poll", {"worker_instance_key": "w", "wait": "10s"}
    )
    (task,) = taken["activities"]
    assert (task["id"], task["input"]) == (id, "aGVsbG8=")
    done = {
        "id": id,
        "worker_instance_key": "w",
        "lease_epoch": task["lease_epoch"],
        "attempt": task["attempt"],
    }
    assert await client.post(f"{namespace_path}/activity/complete", done) == {}
    known = await client.get(f"{namespace_path}/activities/wf/r/a")
    assert known["activity"]["state"] == "ACTIVITY_STATE_COMPLETED"
    assert (
        await client.get(f"{namespace_path}/activity?id.workflow_id=wf&id.run_id=r&id.activity_id=a") == known
    )


async def test_settings_are_changed_with_patch(client: Client) -> None:
    change = {"set": {"cleanup_delay": "600s", "max_workers": "5"}}
    answer = await client.post("/v1/namespaces/orders/config", change, verb="PATCH")
    assert answer["overrides"] == {"cleanup_delay": "600s", "max_workers": "5"}
    assert (await client.get("/v1/namespaces/orders/config"))["effective"]["max_workers"] == "5"
    assert (await client.get("/v1/config"))["effective"]["max_workers"] == "1000000"


@pytest.mark.parametrize(
    "key",
    [
        "a/b",
        "100%",
        "%2F",
        "..",
        ".",
        "ünï çode 漢字 🦜",
        "a b+c",
        "?x=1&y=2#z",
        "worker",
        "heartbeat",
        "<img>",
        "'\"\\",
        "~",
    ],
)
async def test_any_name_can_be_used_in_a_path_or_a_query(
    http_harness: HttpHarness, client: Client, key: str
) -> None:
    escaped = quote(key, safe="")
    made = await client.post(f"/v1/namespaces/orders/workers/{escaped}/heartbeat", {"task_queue": "q"})
    assert made["outcome"] == "HEARTBEAT_OUTCOME_REGISTERED"
    assert (await http_harness.harness.describe(key)).worker_instance_key == key
    by_path = await client.get(f"/v1/namespaces/orders/workers/{escaped}")
    by_query = await client.get(f"/v1/namespaces/orders/worker?worker_instance_key={escaped}")
    assert by_path["worker"]["worker_instance_key"] == by_query["worker"]["worker_instance_key"] == key
    again = {"heartbeat": {"worker_instance_key": key}}
    renewed = await client.post("/v1/namespaces/orders/worker/heartbeat", again)
    assert renewed["outcome"] == "HEARTBEAT_OUTCOME_RENEWED"


async def test_filters_and_pages_are_query_parameters(http_harness: HttpHarness, client: Client) -> None:
    await http_harness.harness.beat("a", build_id="1")
    await http_harness.harness.beat("b", build_id="2")
    await http_harness.harness.beat("c", build_id="2")
    await http_harness.harness.shut_down("c")

    async def keys(query: str) -> list[str]:
        answer = await client.get(f"/v1/namespaces/orders/workers?{query}")
        return [worker["worker_instance_key"] for worker in answer["workers"]]

    assert await keys("") == ["a", "b", "c"]
    assert await keys("filter.build_id=2") == ["b", "c"]
    assert await keys("filter.states=WORKER_STATE_INACTIVE") == ["c"]
    assert await keys("filter.states=INACTIVE") == ["c"]
    assert await keys(f"filter.states={worker_pb2.WORKER_STATE_INACTIVE}") == ["c"]
    assert await keys("filter.states=ACTIVE&filter.states=INACTIVE&filter.buildId=2") == ["b", "c"]
    first = await client.get("/v1/namespaces/orders/workers?page_size=2")
    rest = f"pageSize=2&page_token={quote(first['next_page_token'])}"
    assert await keys(rest) == ["c"]


async def test_a_client_that_disconnects_cancels_its_call(http_harness: HttpHarness) -> None:
    await http_harness.harness.beat("w", task_queue="q")
    body = json.dumps({"worker_instance_key": "w", "wait": "60s"}).encode()
    polls = http_harness.harness.server.matching._polls
    async with http_harness.client.connect() as http_connection:
        await http_connection.send("POST", "/v1/namespaces/orders/activities/poll", JSON, body)
        while not polls:
            await asyncio.sleep(0)
    while polls:
        await asyncio.sleep(0)
