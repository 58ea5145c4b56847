"""Calls about registered components go through a frontend to the owner of their shard, also those for a number."""

from __future__ import annotations

from tests.integration.routing.routed_cluster import Cluster
from tests.integration.server.registry_client import NUMBER, RegistryClient
from tests.integration.server.server_harness import REGISTERED, RENEWED, RESURRECTED, refusal


async def test_a_component_is_served_by_the_owner_of_its_shard(cluster: Cluster) -> None:
    client = RegistryClient(cluster.client.channel)
    keys = [f"broker:{number}" for number in range(8)]
    assert {cluster.owner_of(key).name for key in keys} == {"a", "b"}
    for key in keys:
        owner = cluster.owner_of(key)
        owner.recorder.received.clear()
        assert (await client.register(key, session_id="s")).outcome == REGISTERED
        assert (await client.heartbeat(key)).outcome == RENEWED
        await client.deregister(key)
        assert (await client.entry(key)).status == "offline"
        assert (await client.heartbeat(key, session_id="s")).outcome == RESURRECTED
        assert owner.recorder.methods() == ["Register", "Heartbeat", "Deregister", "GetEntry", "Heartbeat"]


async def test_a_number_can_lie_on_another_owner(cluster: Cluster) -> None:
    client = RegistryClient(cluster.client.channel)
    found = [
        (await client.register("broker:n", session_id=f"s{index}", on_replica=NUMBER)).entry
        for index in range(6)
    ]
    assert [entry.name for entry in found] == ["n", "n-2", "n-3", "n-4", "n-5", "n-6"]
    assert {cluster.owner_of(entry.worker_instance_key).name for entry in found} == {"a", "b"}
    refused = await refusal(client.register("broker:n", session_id="s", on_replica=NUMBER, capacity=-1))
    assert refused.reason == "INVALID_FIELD", "an owner's refusal reaches the caller as it is"
