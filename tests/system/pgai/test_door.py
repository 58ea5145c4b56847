"""`liveness serve --door pgai=…` as a process: it follows, survives, and one node of a cluster follows."""

from __future__ import annotations

import signal

from liveness.v1.worker_pb2 import WORKER_STATE_ACTIVE
from tests.databases import PostgresServer
from tests.system.pgai.conftest import Stage
from tests.system.server.server_process import ServerProcess


async def test_a_server_that_is_killed_counts_on_where_it_was(stage: Stage) -> None:
    await stage.server.start()
    id = str(await stage.run("SELECT ai._worker_start('1', '5 minutes')"))
    await stage.run("SELECT ai._worker_heartbeat($1, 3, 1, 'x')", id)
    await stage.eventually(lambda workers: id in workers and workers[id].successes == 3)
    await stage.server.kill()
    await stage.run("SELECT ai._worker_heartbeat($1, 4, 0, NULL)", id)
    await stage.server.start()
    found = await stage.eventually(lambda workers: workers[id].successes > 3)
    assert (found[id].successes, found[id].errors, found[id].state) == (7, 1, WORKER_STATE_ACTIVE)


async def test_of_two_nodes_one_follows_and_the_other_takes_over(
    stage: Stage, postgres: PostgresServer
) -> None:
    database = postgres.create_database()
    flags = [*stage.flags, "--cluster-listen", "127.0.0.1:0"]
    nodes = [ServerProcess(postgres.url(database), flags=[*flags]) for _ in range(2)]
    try:
        for node in nodes:
            await node.start()
        id = str(await stage.run("SELECT ai._worker_start('1', '5 minutes')"))
        await stage.run("SELECT ai._worker_heartbeat($1, 3, 0, NULL)", id)
        await stage.eventually(lambda workers: id in workers and workers[id].successes == 3, nodes[1])
        following = [node for node in nodes if "following pgai workers" in node.log_text()]
        assert len(following) == 1
        (other,) = set(nodes) - set(following)
        await following[0].end(signal.SIGTERM)
        await stage.run("SELECT ai._worker_heartbeat($1, 4, 0, NULL)", id)
        found = await stage.eventually(lambda workers: id in workers and workers[id].successes > 3, other)
        assert found[id].successes == 7
        assert found[id].state == WORKER_STATE_ACTIVE
        assert "following pgai workers" in other.log_text()
    finally:
        for node in nodes:
            await node.close()
        postgres.drop_database(database)
