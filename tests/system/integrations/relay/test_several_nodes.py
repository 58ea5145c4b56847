"""Several nodes relay together: each node relays its own shards, and any node answers for all."""

from __future__ import annotations

import asyncio
from pathlib import Path

from liveness.v1 import admin_pb2
from tests.databases import PostgresServer
from tests.system.cli.shell import Shell
from tests.system.integrations.relay.nats_servers import body, id_of, messages, one_server
from tests.system.integrations.relay.relay_server import CALL_S, FAST, lose, status, until, until_done
from tests.system.server.conftest import MakeServer
from tests.system.server.server_process import ServerProcess

SHARDS = 8


async def wait_divided(server: ServerProcess, nodes: int) -> bool:
    """Wait until every shard is served and every node has shards."""
    answer = await server.admin.ListShards(admin_pb2.ListShardsRequest(), timeout=CALL_S)
    return (
        all(shard.serving for shard in answer.shards)
        and len({shard.node_id for shard in answer.shards}) == nodes
    )


async def test_another_node_relays_the_reschedules_of_a_killed_node(
    make_server: MakeServer, postgres: PostgresServer, postgres_database: str, tmp_path: Path
) -> None:
    async with one_server(tmp_path) as broker:
        one, other = (
            make_server(
                postgres.url(postgres_database),
                shards=SHARDS,
                flags=["--relay", broker.url, "--relay-events"],
                environ=FAST,
            )
            for _ in range(2)
        )
        await one.start()
        await other.start()
        await until(lambda: wait_divided(other, 2), "both nodes have shards")
        names = await lose(one, "w", 100)
        await until_done(other, 100)
        for asked in (one, other):
            told = await status(asked)
            assert [shard.shard_id for shard in told.shards] == list(range(SHARDS))
            assert [connection.connected for connection in told.connections] == [True, True]

        await broker.kill()
        names += await lose(one, "v", 100)

        async def postponed() -> bool:
            return sum(shard.postponed_tasks for shard in (await status(other)).shards) == 100

        await until(postponed, "both nodes wait for the broker")
        await one.kill()
        await broker.start()
        await until(lambda: wait_divided(other, 1), "the other node has taken everything over")
        await until_done(other, 200)

        async def wait_caught_up() -> bool:
            shards = (await status(other)).shards
            return len(shards) == SHARDS and all(
                shard.backlog == 0 and shard.acknowledged_sequence >= shard.last_sequence for shard in shards
            )

        await until(wait_caught_up, "all events acknowledged")
        found = await messages([broker])
        assert len(found) == len({id_of(message) for message in found})
        reschedules = [message for message in found if ".reschedules." in message.subject]
        assert sorted(body(message)["activity_id"] for message in reschedules) == sorted(names)


async def test_a_replay_covers_all_nodes(
    make_server: MakeServer, postgres: PostgresServer, postgres_database: str, tmp_path: Path
) -> None:
    async with one_server(tmp_path) as broker:
        nodes = [
            make_server(
                postgres.url(postgres_database), shards=SHARDS, flags=["--relay", broker.url], environ=FAST
            )
            for _ in range(2)
        ]
        for node in nodes:
            await node.start()
        await until(lambda: wait_divided(nodes[0], 2), "both nodes have shards")
        await lose(nodes[0], "w", 100)
        await until_done(nodes[0], 100)
        for node in nodes:
            done = await asyncio.to_thread(Shell(node.address).json, "relay", "replay", "--since", "1h")
            assert (done["reschedules"], done["duplicates"]) == ("100", "100")
