"""The HTTP door for NoETL's clients. The bodies are those that its two generations of clients send."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from liveness.doors.noetl.paths import noetl_door
from liveness.doors.noetl.settings import NoetlSettings
from liveness.v1 import registry_pb2
from liveness.v1.registry_service_pb2 import GetEntryRequest
from liveness.v1.registry_service_pb2_grpc import RegistryServiceStub
from liveness.v1.worker_pb2 import WORKER_STATE_ACTIVE, WORKER_STATE_INACTIVE
from tests.integration.http.http_client import JSON, Answer, Client
from tests.integration.http.http_harness import HttpHarness

OLDER_POOL = {
    "name": "pool-a", "runtime": "cpu", "uri": "k8s://noetl/vm", "status": "ready", "capacity": 4, "labels": ["a", "b"],
    "pid": 11174, "hostname": "vm",
}  # fmt: skip
NEWER_POOL = {
    "name": "worker-7f3c", "component_type": "worker_pool", "runtime": "python", "status": "ready", "capacity": 1, "pid": 7,
    "hostname": "pod-1", "labels": {"nats_consumer": "noetl_worker_pool"},
    "meta": {"nats_url": "nats://nats:4222", "started_at": "2026-11-19T01:06:30+00:00"},
}  # fmt: skip
SERVER = {
    "name": "server-x", "component_type": "server_api", "runtime": "server", "base_url": "http://127.0.0.1:8083/api",
    "status": "ready", "capacity": None, "labels": None, "pid": 11174, "hostname": "vm",
}  # fmt: skip
METRICS = {
    "component_name": "pool-a",
    "component_type": "worker_pool",
    "metrics": [
        {
            "metric_name": "noetl_system_cpu_usage_percent", "metric_type": "gauge", "metric_value": 87.5,
            "timestamp": "2026-11-19T01:06:30.854533", "labels": {"component": "pool-a", "hostname": "vm"},
            "help_text": "CPU usage percentage", "unit": "percent",
        },
        {
            "metric_name": "noetl_jobs_processed_total", "metric_type": "counter", "metric_value": 45,
            "labels": None, "help_text": "", "unit": "jobs",
        },
    ],
}  # fmt: skip
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


@pytest.fixture
async def stopped_harness(tmp_path: Path) -> AsyncIterator[HttpHarness]:
    http_harness = HttpHarness(f"sqlite:///{tmp_path}/liveness.db")
    yield http_harness
    await http_harness.close()


@pytest.fixture
async def noetl(stopped_harness: HttpHarness) -> NoetlClient:
    return NoetlClient(await stopped_harness.open(doors=[noetl_door(NoetlSettings())]))


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
    assert (entry.uri, entry.status, entry.capacity) == ("k8s://noetl/vm", "ready", 4)
    assert (entry.host_name, entry.process_id) == ("vm", "11174")
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
    entry = await noetl.entry("worker_pool:worker-7f3c")
    assert (entry.state, entry.lease_epoch, len(entry.replicas)) == (WORKER_STATE_ACTIVE, 1, 0)
    [row] = await noetl.pools()
    assert row["labels"] == {"nats_consumer": "noetl_worker_pool"}
    assert row["meta"]["nats_url"] == "nats://nats:4222"
    await noetl.ok(
        "POST", "/api/worker/pool/deregister", {"name": "worker-7f3c", "component_type": "worker_pool"}
    )
    assert (await noetl.entry("worker_pool:worker-7f3c")).status == "offline"


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
    noetl = NoetlClient(await stopped_harness.open(doors=[noetl_door(NoetlSettings(auto_recreate=False))]))
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
    door = noetl_door(NoetlSettings(replicas=replicas))
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


async def test_metrics_are_stored_and_found_again(noetl: NoetlClient, stopped_harness: HttpHarness) -> None:
    await noetl.register()
    report = partial(noetl.ok, "POST", "/api/metrics/report")
    assert (await report(METRICS))["metrics_inserted"] == 2
    assert (await report({**METRICS, "component_type": "queue_worker"}))["status"] == "ok"
    found = await stopped_harness.client.get(
        "/api/metrics/query?component_name=pool-a&metric_name=noetl_system_cpu_usage_percent"
    )
    assert found["limit"] == 1_000
    assert {(row["metric_value"], row["metric_type"], row["unit"]) for row in found["metrics"]} == {
        (87.5, "gauge", "percent")
    }
    unknown = await noetl.send("POST", "/api/metrics/report", {**METRICS, "component_name": "nobody"})
    assert unknown.code == 404


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
