"""The HTTP door for NoETL's clients. The bodies are those that its two generations of clients send."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from liveness.doors.noetl.paths import noetl_door
from liveness.doors.noetl.settings import NoetlSettings
from liveness.http.server import Door
from liveness.v1 import registry_pb2
from liveness.v1.registry_service_pb2 import GetEntryRequest
from liveness.v1.registry_service_pb2_grpc import RegistryServiceStub
from liveness.v1.worker_pb2 import WORKER_STATE_ACTIVE, WORKER_STATE_INACTIVE
from tests.integration.http.http_client import JSON, Answer, Client
from tests.integration.http.http_harness import HttpHarness

REQUESTS = Path(__file__).with_name("noetl_requests.json")
"""Recorded from NoETL's own clients: the one of October 2025, and the one of July 2026."""


class Recorded(NamedTuple):
    client: str
    verb: str
    path: str
    headers: dict[str, str]
    body: str


RECORDED = [Recorded(**request) for request in json.loads(REQUESTS.read_text())]


def recorded_body(client: str, path: str) -> dict[str, Any]:
    """The body of the last such request."""
    *_, found = (each for each in RECORDED if each.client == client and each.path == path)
    body: dict[str, Any] = json.loads(found.body)
    return body


OLDER, NEWER = "October 2025", "July 2026"
OLDER_POOL = recorded_body(OLDER, "/api/worker/pool/register")
NEWER_POOL = recorded_body(NEWER, "/api/worker/pool/register")
SERVER = recorded_body(OLDER, "/api/runtime/register")
METRICS = recorded_body(OLDER, "/api/metrics/report")
OFFLINE_AFTER_MS = 45_000


class NoetlClient:
    def __init__(self, http_harness: HttpHarness) -> None:
        self._harness = http_harness.harness
        self._client: Client = http_harness.client

    async def send(self, verb: str, path: str, body: Any) -> Answer:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self._client.ask(verb, path, JSON, content)

    async def ok(self, verb: str, path: str, body: Any) -> dict[str, Any]:
        answer = await self.send(verb, path, body)
        assert answer.code == 200, answer.body
        return answer.json()

    async def register(self, body: Any = OLDER_POOL, **changed: Any) -> dict[str, Any]:
        return await self.ok("POST", "/api/worker/pool/register", {**body, **changed})

    async def heartbeat(self, name: str = "pool-a") -> dict[str, Any]:
        return await self.ok("POST", "/api/worker/pool/heartbeat", {"name": name})

    async def pools(self, query: str = "") -> list[dict[str, Any]]:
        answer = await self._client.get(f"/api/worker/pools{query}")
        assert answer["count"] == len(answer["items"])
        return answer["items"]

    async def entry(self, key: str = "worker_pool:pool-a") -> registry_pb2.RegistryEntry:
        found = await RegistryServiceStub(self._harness.channel).GetEntry(
            GetEntryRequest(namespace="noetl", worker_instance_key=key)
        )
        return found.entry

    async def advance(self, ms: int) -> None:
        await self._harness.advance(ms)


def door_of(http_harness: HttpHarness, **settings: Any) -> Door:
    return noetl_door(NoetlSettings(**settings), http_harness.harness.clock)


@pytest.fixture
async def stopped_harness(tmp_path: Path) -> AsyncIterator[HttpHarness]:
    http_harness = HttpHarness(f"sqlite:///{tmp_path}/liveness.db")
    yield http_harness
    await http_harness.close()


@pytest.fixture
async def noetl(stopped_harness: HttpHarness) -> NoetlClient:
    return NoetlClient(await stopped_harness.open(doors=[door_of(stopped_harness)]))


@pytest.mark.parametrize("client", [OLDER, NEWER])
async def test_recorded_requests_of_the_real_client_are_answered_as_it_expects(
    stopped_harness: HttpHarness, client: str
) -> None:
    http_harness = await stopped_harness.open(doors=[door_of(stopped_harness)])
    for request in (each for each in RECORDED if each.client == client):
        answer = await http_harness.client.ask(
            request.verb, request.path, request.headers, request.body.encode()
        )
        assert answer.code == 200, (request.path, answer.body)
        assert answer.json()["status"] == "ok"
        assert isinstance(answer.json()["runtime_id"], str)
        body = json.loads(request.body)
        if "metrics" in body:
            assert answer.json()["metrics_inserted"] == len(body["metrics"])
    left = await http_harness.client.get("/v1/namespaces/noetl/registry")
    assert {entry["status"] for entry in left["entries"]} == {"offline"}


async def test_an_older_client_registers_heartbeats_and_deregisters(noetl: NoetlClient) -> None:
    registered = await noetl.register()
    assert registered == {
        "status": "ok",
        "name": "pool-a",
        "runtime": "cpu",
        "runtime_id": registered["runtime_id"],
    }
    assert isinstance(registered["runtime_id"], str)
    entry = await noetl.entry()
    assert (entry.uri, entry.status, entry.capacity) == ("local://vm", "ready", 4)
    assert (entry.host_name, entry.process_id) == ("vm", str(OLDER_POOL["pid"]))
    assert await noetl.heartbeat() == {
        "status": "ok",
        "name": "pool-a",
        "runtime_id": registered["runtime_id"],
    }
    [row] = await noetl.pools()
    assert (row["status"], row["runtime"], row["labels"], row["capacity"]) == ("ready", "cpu", ["a", "b"], 4)
    assert row["runtime_id"] == registered["runtime_id"]
    await noetl.ok("DELETE", "/api/worker/pool/deregister", {"name": "pool-a"})
    assert (await noetl.entry()).state == WORKER_STATE_INACTIVE
    [row] = await noetl.pools()
    assert row["status"] == "offline"


async def test_a_newer_client_registers_again_and_again_and_deregisters_by_post(noetl: NoetlClient) -> None:
    for _ in range(3):
        await noetl.register(NEWER_POOL)
        await noetl.advance(15_000)
    entry = await noetl.entry(f"worker_pool:{NEWER_POOL['name']}")
    assert (entry.state, entry.lease_epoch, len(entry.replicas)) == (WORKER_STATE_ACTIVE, 1, 0)
    [row] = await noetl.pools()
    assert row["labels"] == {"nats_consumer": "noetl_worker_pool"}
    assert row["meta"]["nats_url"] == NEWER_POOL["meta"]["nats_url"]
    await noetl.ok("POST", "/api/worker/pool/deregister", recorded_body(NEWER, "/api/worker/pool/deregister"))
    assert (await noetl.entry(f"worker_pool:{NEWER_POOL['name']}")).status == "offline"


async def test_a_server_registers_beside_a_pool_of_the_same_name(noetl: NoetlClient) -> None:
    await noetl.register(name="server-x")
    answer = await noetl.ok("POST", "/api/runtime/register", SERVER)
    assert (answer["status"], answer["component_type"]) == ("ok", "server_api")
    assert (await noetl.entry("server_api:server-x")).uri == "http://127.0.0.1:8083/api"
    await noetl.ok("DELETE", "/api/runtime/deregister", {"name": "server-x", "component_type": "server_api"})
    assert (await noetl.entry("server_api:server-x")).status == "offline"
    assert (await noetl.entry("worker_pool:server-x")).status == "ready"


async def test_a_silent_pool_is_offline_and_comes_back_with_a_heartbeat(noetl: NoetlClient) -> None:
    await noetl.register()
    await noetl.advance(OFFLINE_AFTER_MS - 1_000)
    assert (await noetl.entry()).status == "ready"
    await noetl.advance(2_000)
    assert [row["name"] for row in await noetl.pools("?status=offline")] == ["pool-a"]
    assert (await noetl.heartbeat())["status"] == "ok"
    assert [row["name"] for row in await noetl.pools("?status=ready&runtime=cpu")] == ["pool-a"]
    assert await noetl.pools("?runtime=gpu") == []


async def test_a_name_alone_registers_a_pool(noetl: NoetlClient) -> None:
    answer = await noetl.heartbeat("worker-gpu")
    assert (answer["status"], answer["runtime"]) == ("recreated", "gpu")
    assert (await noetl.heartbeat("worker-gpu"))["status"] == "ok"
    [row] = await noetl.pools()
    assert (row["name"], row["runtime"], row["status"]) == ("worker-gpu", "gpu", "ready")
    nameless = await noetl.ok("POST", "/api/worker/pool/heartbeat", {})
    assert nameless["name"] == "worker-cpu"


async def test_a_pool_that_was_cleaned_up_comes_back_with_a_heartbeat(noetl: NoetlClient) -> None:
    await noetl.register()
    await noetl.advance(OFFLINE_AFTER_MS + 1_000)
    while (await noetl.entry()).state == WORKER_STATE_INACTIVE:
        await noetl.advance(60_000)
    assert (await noetl.heartbeat())["status"] in ("ok", "recreated")
    assert (await noetl.entry()).state == WORKER_STATE_ACTIVE


async def test_unknown_pools_are_refused_where_nothing_is_recreated(stopped_harness: HttpHarness) -> None:
    noetl = NoetlClient(await stopped_harness.open(doors=[door_of(stopped_harness, auto_recreate=False)]))
    answer = await noetl.send("POST", "/api/worker/pool/heartbeat", {"name": "pool-a"})
    assert answer.code == 404
    assert answer.json() == {"detail": {"status": "unknown", "name": "pool-a"}}
    assert int(answer.headers["retry-after"]) > 0


async def test_a_second_process_under_one_name_is_shown_and_does_not_hide_a_death(noetl: NoetlClient) -> None:
    await noetl.register(NEWER_POOL, name="pool-a")
    for _ in range(4):
        await noetl.advance(15_000)
        await noetl.register(NEWER_POOL, name="pool-a", pid=8, hostname="pod-2")
    # The first one has been silent for a minute; the second one has taken the name.
    entry = await noetl.entry()
    assert (entry.state, entry.lease_epoch, entry.host_name) == (WORKER_STATE_ACTIVE, 2, "pod-2")


@pytest.mark.parametrize(
    ("replicas", "code", "name"), [("show", 200, "pool-a"), ("number", 200, "pool-a-2"), ("refuse", 400, "")]
)
async def test_a_second_process_under_one_name(
    stopped_harness: HttpHarness, replicas: str, code: int, name: str
) -> None:
    door = door_of(stopped_harness, replicas=replicas)
    noetl = NoetlClient(await stopped_harness.open(doors=[door]))
    await noetl.register()
    body = {**OLDER_POOL, "pid": 2, "hostname": "other"}
    answer = await noetl.send("POST", "/api/worker/pool/register", body)
    assert answer.code == code
    if code == 200:
        assert answer.json()["name"] == name
    else:
        assert "detail" in answer.json()
    shown = [f"{replica.host_name}:{replica.process_id}" for replica in (await noetl.entry()).replicas]
    assert shown == (["other:2"] if replicas == "show" else [])
    assert (await noetl.entry()).host_name == "vm"


async def test_two_processes_under_one_name_on_one_host_are_both_heard(noetl: NoetlClient) -> None:
    await noetl.register(pid=1)
    await noetl.heartbeat()
    await noetl.advance(5_000)
    await noetl.register(pid=2)
    await noetl.heartbeat()
    for _ in range(8):
        await noetl.advance(10_000)
        await noetl.heartbeat()  # of the first
        await noetl.advance(5_000)
        await noetl.heartbeat()  # of the second
    entry = await noetl.entry()
    assert (entry.state, entry.lease_epoch, entry.process_id) == (WORKER_STATE_ACTIVE, 1, "1")
    assert [replica.process_id for replica in entry.replicas] == ["2"]


async def test_of_two_processes_under_one_name_on_one_host_the_death_of_one_is_seen(
    noetl: NoetlClient,
) -> None:
    for pid in (1, 2):
        await noetl.register(pid=pid)
        await noetl.heartbeat()
        await noetl.advance(5_000)
    epochs = []
    for _ in range(6):  # only the second goes on
        await noetl.advance(15_000)
        await noetl.heartbeat()
        epochs.append((await noetl.entry()).lease_epoch)
    entry = await noetl.entry()
    assert (entry.process_id, entry.lease_epoch, len(entry.replicas)) == ("2", 2, 0)
    assert epochs.index(2) * 15_000 <= OFFLINE_AFTER_MS


async def test_a_process_that_is_killed_and_started_again_delays_nothing(noetl: NoetlClient) -> None:
    await noetl.register(pid=1)
    await noetl.heartbeat()
    await noetl.advance(10_000)
    await noetl.register(pid=2)
    await noetl.heartbeat()
    for _ in range(3):
        await noetl.advance(15_000)
        await noetl.heartbeat()
    # Its predecessor was heard 55 s ago.
    assert ((await noetl.entry()).process_id, (await noetl.entry()).lease_epoch) == ("2", 2)


async def test_of_two_numbered_processes_on_one_host_each_keeps_its_name(
    stopped_harness: HttpHarness,
) -> None:
    noetl = NoetlClient(await stopped_harness.open(doors=[door_of(stopped_harness, replicas="number")]))
    for pid in (1, 2):
        await noetl.register(pid=pid)
        await noetl.heartbeat()
        await noetl.advance(5_000)
    for _ in range(6):
        for ms in (10_000, 5_000):
            await noetl.advance(ms)
            await noetl.heartbeat()
    assert {(row["name"], row["status"]) for row in await noetl.pools()} == {
        ("pool-a", "ready"),
        ("pool-a-2", "ready"),
    }
    await noetl.ok("DELETE", "/api/worker/pool/deregister", {"name": "pool-a"})
    assert sorted(row["status"] for row in await noetl.pools()) == ["offline", "ready"]


async def test_a_numbered_process_that_registers_again_keeps_its_name_when_a_lower_one_is_free(
    stopped_harness: HttpHarness,
) -> None:
    noetl = NoetlClient(await stopped_harness.open(doors=[door_of(stopped_harness, replicas="number")]))
    first, second = ({"name": "pool-a", "pid": pid} for pid in (1, 2))
    assert (await noetl.register(NEWER_POOL, **first))["name"] == "pool-a"
    assert (await noetl.register(NEWER_POOL, **second))["name"] == "pool-a-2"
    for _ in range(5):  # the first is silent
        await noetl.advance(15_000)
        assert (await noetl.register(NEWER_POOL, **second))["name"] == "pool-a-2"
    assert {(row["name"], row["status"]) for row in await noetl.pools()} == {
        ("pool-a", "offline"),
        ("pool-a-2", "ready"),
    }
    third = await noetl.register(NEWER_POOL, name="pool-a", pid=3)
    assert third["name"] == "pool-a", "the free name is for the next one"


async def test_a_goodbye_of_one_of_two_processes_under_one_name_ends_no_lease(noetl: NoetlClient) -> None:
    for pid in (1, 2):
        await noetl.register(pid=pid)
        await noetl.heartbeat()
    await noetl.ok("DELETE", "/api/worker/pool/deregister", {"name": "pool-a"})
    entry = await noetl.entry()
    assert (entry.state, len(entry.replicas)) == (WORKER_STATE_ACTIVE, 0)
    await noetl.ok("DELETE", "/api/worker/pool/deregister", {"name": "pool-a"})
    assert (await noetl.entry()).state == WORKER_STATE_INACTIVE


async def test_replicas_are_heard_after_a_restart_of_the_server(stopped_harness: HttpHarness) -> None:
    async def start() -> NoetlClient:
        return NoetlClient(await stopped_harness.open(doors=[door_of(stopped_harness)]))

    noetl = await start()
    for pid in (1, 2):
        await noetl.register(pid=pid)
        await noetl.heartbeat()
        await noetl.advance(5_000)
    await stopped_harness.close()
    noetl = await start()
    for _ in range(6):
        for ms in (10_000, 5_000):
            await noetl.advance(ms)
            await noetl.heartbeat()
    entry = await noetl.entry()
    assert (entry.lease_epoch, entry.process_id, len(entry.replicas)) == (1, "1", 1)


async def test_metrics_are_stored_and_found_again(noetl: NoetlClient, stopped_harness: HttpHarness) -> None:
    await noetl.register()
    report = partial(noetl.ok, "POST", "/api/metrics/report")
    assert (await report(METRICS))["metrics_inserted"] == len(METRICS["metrics"])
    assert (await report({**METRICS, "component_type": "queue_worker"}))["status"] == "ok"
    local_time = {**METRICS["metrics"][0], "timestamp": "2026-11-19T01:06:30.854533"}
    counter = {"metric_name": "noetl_jobs_processed_total", "metric_type": "counter", "metric_value": 45}
    await report({**METRICS, "metrics": [local_time, counter]})
    found = await stopped_harness.client.get(
        "/api/metrics/query?component_name=pool-a&metric_name=noetl_system_cpu_usage_percent"
    )
    assert found["limit"] == 1_000
    assert {
        (row["metric_value"], row["metric_type"], row["unit"], row["labels"]["component"])
        for row in found["metrics"]
    } == {(100, "gauge", "percent", "pool-a")}
    [row] = (await stopped_harness.client.get("/api/metrics/query?metric_type=counter"))["metrics"]
    assert (row["metric_name"], row["metric_value"]) == ("noetl_jobs_processed_total", 45)
    unknown = await noetl.send("POST", "/api/metrics/report", {**METRICS, "component_name": "nobody"})
    assert unknown.code == 404


async def test_threads_and_hosts_that_come_and_go_do_not_use_up_the_series(noetl: NoetlClient) -> None:
    """These clients give each of their threads a random id, and a pod has another name after each rollout."""
    await noetl.register()
    for number in range(210):
        labels = {"component": "pool-a", "worker_id": f"thread-{number}", "hostname": f"pod-{number}"}
        sample = {"metric_name": "noetl_worker_status", "metric_value": 1, "labels": labels}
        await noetl.ok("POST", "/api/metrics/report", {"component_name": "pool-a", "metrics": [sample]})


@pytest.mark.parametrize(
    ("verb", "path", "body", "says"),
    [
        ("POST", "/api/worker/pool/register", {**OLDER_POOL, "name": ""}, "name is required"),
        ("POST", "/api/worker/pool/register", {**OLDER_POOL, "name": "x" * 201}, "at most 200"),
        ("POST", "/api/worker/pool/register", {**OLDER_POOL, "name": {}}, "name must be a text"),
        ("POST", "/api/worker/pool/register", {**OLDER_POOL, "runtime": None}, "runtime is required"),
        ("POST", "/api/worker/pool/register", {**OLDER_POOL, "capacity": -1}, "capacity"),
        ("POST", "/api/worker/pool/register", {**OLDER_POOL, "capacity": "many"}, "capacity"),
        ("POST", "/api/worker/pool/register", {**OLDER_POOL, "labels": 7}, "labels"),
        ("POST", "/api/worker/pool/register", {**OLDER_POOL, "meta": []}, "meta"),
        ("POST", "/api/worker/pool/register", {**OLDER_POOL, "meta": {"x": "y" * 5_000}}, "4096 bytes"),
        ("POST", "/api/worker/pool/register", {**OLDER_POOL, "name": "a\0b"}, "control"),
        ("POST", "/api/worker/pool/register", b"{", "JSON"),
        ("POST", "/api/worker/pool/register", b"[]", "JSON object"),
        ("POST", "/api/worker/pool/register", b'{"name": "\\ud800", "runtime": "cpu"}', ""),
        ("POST", "/api/runtime/register", {**SERVER, "base_url": ""}, "uri is required"),
        ("POST", "/api/runtime/register", {**SERVER, "component_type": "Worker Pool"}, "kind"),
        ("POST", "/api/runtime/register", {**SERVER, "component_type": "supervisor"}, "kind"),
        ("POST", "/api/worker/pool/heartbeat", {"name": []}, "name must be a text"),
        ("DELETE", "/api/worker/pool/deregister", {}, "name is required"),
        ("POST", "/api/worker/pool/deregister", b"\xff", "JSON"),
        ("DELETE", "/api/runtime/deregister", {}, "name is required"),
        ("DELETE", "/api/runtime/deregister", {"name": "pool-a", "component_type": "worker"}, "kind"),
        ("POST", "/api/runtime/deregister", {"name": "pool-a", "component_type": []}, "component_type must be a text"),
        ("GET", "/api/worker/pools?status=" + "x" * 65, b"", "status"),
        ("GET", "/api/worker/pools?status=%00", b"", "status"),
        ("GET", "/api/metrics/query?limit=0", b"", "limit"),
        ("GET", "/api/metrics/query?limit=10001", b"", "limit"),
        ("GET", "/api/metrics/query?start_time=soon", b"", "start_time"),
        ("GET", "/api/metrics/query?start_time=2026-01-02T00:00:00Z&end_time=2026-01-01T00:00:00Z", b"", "start_time"),
        ("POST", "/api/metrics/report", {"component_name": "pool-a"}, "metrics"),
        ("POST", "/api/metrics/report", {"metrics": []}, "component_name is required"),
        ("POST", "/api/metrics/report", {**METRICS, "metrics": [{"metric_name": "x"}]}, "metrics[0].metric_value"),
        ("POST", "/api/metrics/report", {**METRICS, "metrics": [7]}, "metrics[0]"),
    ],
)  # fmt: skip
async def test_bad_input_gets_one_sentence_and_changes_nothing(
    noetl: NoetlClient, verb: str, path: str, body: Any, says: str
) -> None:
    await noetl.register()
    before = await noetl.pools()
    answer = await noetl.send(verb, path, body)
    assert answer.code == 400, answer.body
    assert says in answer.json()["detail"]
    assert await noetl.pools() == before


@pytest.mark.parametrize(
    ("verb", "path"),
    [
        ("POST", "/api/worker/pool/register"),
        ("POST", "/api/worker/pool/heartbeat"),
        ("DELETE", "/api/worker/pool/deregister"),
        ("POST", "/api/worker/pool/deregister"),
        ("POST", "/api/runtime/register"),
        ("DELETE", "/api/runtime/deregister"),
        ("POST", "/api/runtime/deregister"),
        ("POST", "/api/metrics/report"),
    ],
)
async def test_no_route_takes_a_body_that_cannot_be_read(
    noetl: NoetlClient, stopped_harness: HttpHarness, verb: str, path: str
) -> None:
    await noetl.register()
    before = await noetl.pools()
    name = b'"name": "pool-a", "component_name": "pool-a"'
    for body in (
        b"{",
        b"[]",
        b"7",
        b"null",
        b"\xff",
        b"[" * 9_000,
        b"{" + name + b", " + name[:-1],
        b'{"name": "\\ud800"}',
    ):
        answer = await noetl.send(verb, path, body)
        assert (answer.code, list(answer.json())) == (400, ["detail"]), body[:50]
    plain = await stopped_harness.client.ask(verb, path, {"Content-Type": "text/plain"}, b"{" + name + b"}")
    assert (plain.code, "Content-Type" in plain.json()["detail"]) == (415, True)
    assert await noetl.pools() == before


async def test_what_is_unknown_can_be_deregistered(noetl: NoetlClient) -> None:
    await noetl.ok("DELETE", "/api/worker/pool/deregister", {"name": "nobody"})
    assert await noetl.pools() == []


async def test_wrong_verbs_are_refused(noetl: NoetlClient, stopped_harness: HttpHarness) -> None:
    answer = await stopped_harness.client.ask("GET", "/api/worker/pool/register")
    assert (answer.code, answer.headers["allow"]) == (405, "POST")


async def test_no_answer_without_a_node(noetl: NoetlClient, stopped_harness: HttpHarness) -> None:
    await stopped_harness.harness.stop()
    answer = await noetl.send("POST", "/api/worker/pool/heartbeat", {"name": "pool-a"})
    assert answer.code == 503
