"""When the answer to a COMMIT is lost, the node resolves the outcome by reading the shards again under a higher epoch."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import urlsplit

import pytest

from liveness.v1 import admin_pb2
from tests.crash.scale import scaled
from tests.databases import PostgresServer, postgres_store_database
from tests.system.postgres_failures.outage_run import OutageRun, outage_run
from tests.system.server.conftest import NO_CHECKPOINTS, NO_TAKEOVER_GRACE, MakeServer
from tests.system.server.crash_loop import ReportResult
from tests.system.worker_processes.tcp_proxy import CHUNK_BYTES, Connection, Proxy

COMMIT = b"COMMIT;\0"
FOUND_SECONDS_MAX = 30


class CommitAnswerDropper(Proxy):
    """Passes a COMMIT on, and cuts the connection instead of returning its answer."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.armed = False
        self.lost = 0

    async def lose_an_answer(self) -> None:
        lost = self.lost
        self.armed = True
        async with asyncio.timeout(FOUND_SECONDS_MAX):
            while self.lost == lost:
                await asyncio.sleep(0.005)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self.target.split(":")
        beyond_reader, beyond_writer = await asyncio.open_connection(host, int(port))
        connection = Connection(self, (reader, writer), (beyond_reader, beyond_writer))
        self._connections.add(connection)
        sent_commit = False

        async def to_server() -> None:
            nonlocal sent_commit
            while data := await reader.read(CHUNK_BYTES):
                sent_commit = data.endswith(COMMIT)
                beyond_writer.write(data)

        async def to_client() -> None:
            while data := await beyond_reader.read(CHUNK_BYTES):
                if sent_commit and self.armed:
                    # This is the answer, so the commit is durable.
                    self.armed = False
                    self.lost += 1
                    return
                writer.write(data)

        ways = [asyncio.create_task(to_server()), asyncio.create_task(to_client())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            connection.cut()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self._connections.discard(connection)


async def epochs(run: OutageRun) -> dict[int, int]:
    answer = await run.server.admin.ListShards(admin_pb2.ListShardsRequest())
    return {shard.shard_id: shard.epoch for shard in answer.shards}


async def lose_answers(run: OutageRun, proxy: CommitAnswerDropper, times: int) -> None:
    for _ in range(times):
        before, unheard = await epochs(run), unheard_renewals(run)
        async with run.failure():
            await proxy.lose_an_answer()
        if (
            unheard_renewals(run) == unheard
        ):  # otherwise it was the renewal of the node's own lease, which costs no shard
            assert sum((await epochs(run)).values()) > sum(before.values()), "no shard was read again"


def unheard_renewals(run: OutageRun) -> int:
    return sum(json.loads(line)["event"] == "cannot renew this node's lease" for line in run.server.log)


def unknown_commits(run: OutageRun) -> int:
    said = map(json.loads, run.server.log)
    return sum("It is not known whether the commit took place" in line.get("why", "") for line in said)


async def test_a_lost_answer_to_a_commit_loses_no_acknowledged_heartbeat(
    make_server: MakeServer, durable_postgres: PostgresServer, report_result: ReportResult
) -> None:
    database = durable_postgres.create_database()
    direct = durable_postgres.url(database)
    address = urlsplit(direct).netloc.rpartition("@")[2]
    async with CommitAnswerDropper(address) as proxy:
        server = make_server(
            direct.replace(address, proxy.address), environ=NO_TAKEOVER_GRACE | NO_CHECKPOINTS
        )
        async with outage_run(
            server, postgres_store_database(durable_postgres, database), report_result, seed=3
        ) as run:
            await lose_answers(run, proxy, 4)
            assert unknown_commits(run) >= 1, run.server.log_text()


@pytest.mark.crash_long
@pytest.mark.parametrize("seed", range(310, 312))
async def test_repeatedly_lost_answers_lose_no_acknowledged_heartbeat(
    make_server: MakeServer, durable_postgres: PostgresServer, report_result: ReportResult, seed: int
) -> None:
    database = durable_postgres.create_database()
    direct = durable_postgres.url(database)
    address = urlsplit(direct).netloc.rpartition("@")[2]
    async with CommitAnswerDropper(address) as proxy:
        server = make_server(
            direct.replace(address, proxy.address), environ=NO_TAKEOVER_GRACE | NO_CHECKPOINTS
        )
        async with outage_run(
            server, postgres_store_database(durable_postgres, database), report_result, seed
        ) as run:
            await lose_answers(run, proxy, scaled(60))
