"""Streams of one worker are ordered as its client opened them, wherever and whenever their requests arrive."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from liveness.routing.routing_table import Member, RoutingTable
from tests.integration.routing.routed_cluster import Cluster, RoutingFrontend
from tests.integration.routing.test_retries import shard_id_of
from tests.integration.routing.test_stream_proxy import (
    GRACE_MS,
    Stream,
    is_attached,
    move,
    seen,
    until,
    workers,
)
from tests.integration.server.server_harness import ACTIVE, INACTIVE, SHARDS

__all__ = ["workers"]


class LateFrontend(RoutingFrontend):
    """A frontend that learns of moved shards when the test says so."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(RoutingTable(SHARDS))
        self._cluster = cluster

    def learn_owners(self) -> None:
        owners = self._cluster.owners.values()
        self.routes.replace(
            [Member(owner.name, owner.cluster_address) for owner in owners],
            {
                shard_id: (owner.name, self.routes.revision + 1)
                for owner in owners
                for shard_id in owner.owned
            },
        )

    @property
    def is_attaching(self) -> bool:
        clients = self.gateway.streams._clients.values()
        return any(attachment.steps for client in clients for attachment in client.attachments.values())


@pytest.fixture
async def late_frontend(cluster: Cluster) -> AsyncIterator[LateFrontend]:
    frontend = LateFrontend(cluster)
    frontend.learn_owners()
    await frontend.start()
    yield frontend
    await frontend.stop()


@pytest.mark.parametrize("newer_through", ["a frontend", "the new owner"])
async def test_a_stream_that_its_client_left_does_not_replace_the_newer_one_at_the_new_owner(
    cluster: Cluster, late_frontend: LateFrontend, workers: tuple[str, str], newer_through: str
) -> None:
    worker, a = workers[1], cluster.owners["a"]
    older = Stream(cluster.connect(late_frontend.address))
    await older.attach_fully(worker, number=1)
    move(cluster, worker, "a")
    cluster.publish()
    await until(lambda: late_frontend.is_attaching)
    address = cluster.frontend.address if newer_through == "a frontend" else a.address
    newer = Stream(cluster.connect(address))
    await newer.attach_fully(worker, number=2)

    late_frontend.learn_owners()
    await until(lambda: not late_frontend.is_attaching)
    await older.cut()
    await until(lambda: not late_frontend.gateway.streams._clients)
    await until(lambda: sum(len(call._streams_by_number) for call in a.streams._forwarding_calls) == 1)

    assert await seen(a, worker) == (ACTIVE, True, False)
    await a.harness.advance(GRACE_MS + 300)
    assert (await seen(a, worker))[0] == ACTIVE
    await newer.cut()
    await until(lambda: not is_attached(a, worker))
    await a.harness.advance(GRACE_MS + 300)
    assert (await seen(a, worker))[0] == INACTIVE, "the newer stream counts"


async def test_a_newer_stream_replaces_one_that_was_attached_at_the_new_owner_first(
    cluster: Cluster, late_frontend: LateFrontend, workers: tuple[str, str]
) -> None:
    worker, a = workers[1], cluster.owners["a"]
    older = Stream(cluster.connect(late_frontend.address))
    await older.attach_fully(worker, number=1)
    move(cluster, worker, "a")
    late_frontend.learn_owners()
    await until(lambda: is_attached(a, worker))
    cluster.publish()
    newer = Stream(cluster.connect(a.address))
    await newer.attach_fully(worker, number=2)
    await until(lambda: not late_frontend.gateway.streams._groups)

    await older.cut()

    await until(lambda: not late_frontend.gateway.streams._clients)
    assert shard_id_of(worker) in a.owned
    assert await seen(a, worker) == (ACTIVE, True, False)
    await newer.cut()
