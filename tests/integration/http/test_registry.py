"""The registry over HTTP, on one node and on two."""

from __future__ import annotations

import asyncio
from typing import Any

from liveness.domain.keys import shard_of
from tests.integration.cluster.test_two_nodes import owned
from tests.integration.http.http_client import Client
from tests.integration.http.http_harness import HttpHarness
from tests.integration.http.test_several_nodes import http_harnesses
from tests.integration.server.server_harness import SHARDS

__all__ = ["http_harnesses"]

PATH = "/v1/namespaces/orders/registry"


async def register(client: Client, key: str, **fields: Any) -> Any:
    return await client.post(f"{PATH}/register", {"worker_instance_key": key, **fields})


async def names(client: Client, query: str = "") -> list[str]:
    return [entry["worker_instance_key"] for entry in (await client.get(f"{PATH}{query}"))["entries"]]


async def test_a_component_lives_over_http(client: Client) -> None:
    made = await register(
        client, "broker:nats", uri="nats://a", capacity=4, runtime_json='{"type":"cpu"}', expected_interval="15s",
        labels={"zone": "b"}, host_name="h", process_id="1",
    )  # fmt: skip
    assert (made["outcome"], made["session_id"]) == ("HEARTBEAT_OUTCOME_REGISTERED", "h:1")
    beat = await client.post(f"{PATH}/heartbeat", {"worker_instance_key": "broker:nats", "status": "busy"})
    assert (beat["entry"]["status"], beat["next_heartbeat_after"]) == ("busy", "15s")
    assert (await client.get(f"{PATH}/broker:nats"))["entry"] == beat["entry"]
    assert await names(client, "?kind=broker&status=busy&labels[zone]=b&runtime[type]=cpu") == ["broker:nats"]
    await client.post(f"{PATH}/deregister", {"worker_instance_key": "broker:nats", "reason": "done"})
    assert await names(client, "?status=offline&stale=true") == ["broker:nats"]


async def test_http_says_what_is_wrong(client: Client) -> None:
    for body, reason in (
        ({"worker_instance_key": "nats"}, "INVALID_FIELD"),
        ({"worker_instance_key": "broker:a", "capacity": -1}, "INVALID_FIELD"),
        ({"worker_instance_key": "broker:a", "runtime": {}}, "UNKNOWN_FIELD"),
    ):
        assert (await client.refused("POST", f"{PATH}/register", body))[:2] == (400, reason)
    beat = {"worker_instance_key": "broker:a"}
    assert (await client.refused("POST", f"{PATH}/heartbeat", beat))[:2] == (404, "REGISTRY_ENTRY_NOT_FOUND")
    assert await names(client) == []


async def test_each_node_lists_the_components_of_all(
    http_harnesses: tuple[HttpHarness, HttpHarness],
) -> None:
    first, second = http_harnesses
    keys = sorted(f"broker:{number}" for number in range(12))
    for key in keys:
        await register(first.client, key)
    mine = owned(first.harness)
    assert {shard_of("orders", key, SHARDS) in mine for key in keys} == {True, False}
    for http_harness in (first, second):
        listed: list[str] = []
        token = ""
        while True:
            page = await http_harness.client.get(f"{PATH}?page_size=5&page_token={token}")
            listed += [entry["worker_instance_key"] for entry in page["entries"]]
            if not (token := page.get("next_page_token", "")):
                break
        assert listed == keys


async def test_numbers_are_given_across_nodes(http_harnesses: tuple[HttpHarness, HttpHarness]) -> None:
    first, second = http_harnesses
    found = [
        (await register(client, "broker:n", session_id=f"s{index}", on_replica="REPLICA_POLICY_NUMBER"))[
            "entry"
        ]["name"]
        for index, client in enumerate([first.client, second.client] * 3)
    ]
    assert found == ["n", "n-2", "n-3", "n-4", "n-5", "n-6"]
    mine = owned(first.harness)
    assert {shard_of("orders", f"broker:{name}", SHARDS) in mine for name in found} == {True, False}


async def test_of_many_that_register_one_name_at_once_one_has_it_and_each_counts_once(
    http_harnesses: tuple[HttpHarness, HttpHarness],
) -> None:
    """Half of them speak to the one node, half to the other, and all repeat what they say."""
    first, second = (http_harness.client for http_harness in http_harnesses)
    for http_harness in http_harnesses:
        http_harness.harness.lift_rate_limits()
    sessions = [f"s{number}" for number in range(10)]

    async def all_at_once(verb: str, **fields: Any) -> list[str]:
        """Returns the sessions that have the name."""
        calls = [
            (
                (first, second)[number % 2],
                {"worker_instance_key": "broker:n", "session_id": session, **fields},
            )
            for number, session in enumerate(sessions)
        ]
        answers = await asyncio.gather(
            *(client.post(f"{PATH}/{verb}", body) for client, body in calls for _ in range(2))
        )
        return [
            body["session_id"]
            for (_, body), answer in zip(((*call,) for call in calls for _ in range(2)), answers, strict=True)
            if not answer["is_replica"]
        ]

    owner, also = await all_at_once("register")
    assert owner == also
    assert await all_at_once("heartbeat", sequence=1, successes=5) == [owner, owner]
    await first.post(f"{PATH}/deregister", {"worker_instance_key": "broker:n", "session_id": owner})
    sessions.remove(owner)
    (next_owner,) = set(await all_at_once("heartbeat", sequence=1, successes=5))
    assert next_owner != owner
    entry = (await second.get(f"{PATH}/broker:n"))["entry"]
    assert (entry["successes"], len(entry["replicas"])) == ("10", 8)
