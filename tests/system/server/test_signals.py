"""A graceful shutdown answers every call and loses nothing; a stopped process costs no worker its lease."""

from __future__ import annotations

import asyncio
from random import Random
from signal import SIGINT, SIGTERM, Signals

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from liveness.store.codec import EVENT_KINDS
from liveness.store.schema import checkpoints, log
from liveness.v1 import service_pb2
from tests.databases import StoreDatabase
from tests.system.server.audit import ClockAudit, audit_workers
from tests.system.server.conftest import NO_TAKEOVER_GRACE, MakeServer
from tests.system.server.crash_loop import check, final_audit
from tests.system.server.ledger import NAMESPACE, Beat, Ledger
from tests.system.server.load import Load

LOAD_SECONDS = 0.5


@pytest.mark.parametrize("how", [SIGTERM, SIGINT])
async def test_a_graceful_shutdown_answers_every_applied_heartbeat(
    make_server: MakeServer, sqlite_url: str, sqlite_database: StoreDatabase, how: Signals
) -> None:
    """The shutdown also leaves a checkpoint, and the next start finds all data."""
    server = make_server(sqlite_url, environ=NO_TAKEOVER_GRACE)
    ledger = Ledger(server)
    await server.start()
    async with Load(server, ledger, Random(5)) as load:
        for _ in range(2):
            await asyncio.sleep(LOAD_SECONDS)
            code = await server.end(how)
            load.pause()
            await load.wait_idle()
            await server.disconnect()
            assert code == 0, server.log_text()
            assert "Traceback" not in server.log_text()
            assert '"stopped"' in server.log[-1]
            await _assert_checkpointed(sqlite_database)
            await server.start()
            await audit_workers(server, ledger)
            load.resume()
        load.pause()
        await load.wait_idle()
    assert ledger.acked > 0
    assert ledger.in_doubt_applied == 0, "a heartbeat was applied and not answered"
    await final_audit(server, sqlite_database, ledger)
    check(ledger)


async def _assert_checkpointed(store_database: StoreDatabase) -> None:
    """Check that the checkpoint holds the effects of all heartbeats; a lease may have ended, or a task been done, after
    it.
    """
    dump = await store_database.dump()
    made = {row[0]: row[list(checkpoints.columns.keys()).index("seq")] for row in dump["checkpoints"]}
    shard_id, seq, kind = (list(log.columns.keys()).index(name) for name in ("shard_id", "seq", "kind"))
    after = {row[kind] for row in dump["log"] if row[seq] > made[row[shard_id]]}
    assert after <= {kind for kind in EVENT_KINDS if kind.startswith("Activity")} | {"WorkerDeactivated"}


async def test_open_watches_do_not_delay_the_shutdown(make_server: MakeServer, sqlite_url: str) -> None:
    """A load balancer, for example, watches the health service all the time."""
    server = make_server(sqlite_url, environ={"LIVENESS_SHUTDOWN_TIMEOUT_S": "600"})
    await server.start()
    health = health_pb2_grpc.HealthStub(server.channel).Watch(health_pb2.HealthCheckRequest())  # type: ignore[attr-defined]
    events = server.liveness.WatchEvents(service_pb2.WatchEventsRequest())
    assert (await health.read()).status == health_pb2.HealthCheckResponse.SERVING
    await events.read()
    code = await server.end(SIGINT)
    assert (code, "Traceback" in server.log_text()) == (0, False)
    assert (await health.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_no_lease_ends_while_a_stopping_server_refuses_heartbeats(
    make_server: MakeServer, sqlite_url: str, sqlite_database: StoreDatabase
) -> None:
    """An open call delays the shutdown by more than a lease, and no worker loses its lease by it."""
    server = make_server(sqlite_url, environ=NO_TAKEOVER_GRACE | {"LIVENESS_SHUTDOWN_TIMEOUT_S": "2"})
    await server.start()
    stream = reflection_pb2_grpc.ServerReflectionStub(server.channel).ServerReflectionInfo()  # type: ignore[arg-type, operator]
    await stream.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    await stream.read()
    beat = Beat("worker", "session", 1, 1_000, frozenset(["activity"]))
    await server.liveness.RecordWorkerHeartbeat(
        service_pb2.RecordWorkerHeartbeatRequest(namespace=NAMESPACE, heartbeat=beat.message())
    )
    assert await server.end(SIGTERM) == 0
    dump = await sqlite_database.dump()
    assert "WorkerRegistered" in str(dump["log"])
    assert "WorkerDeactivated" not in str(dump["log"])
    assert dump["tasks"] == []


async def test_a_stop_longer_than_the_leases_costs_no_worker_its_lease(
    make_server: MakeServer, sqlite_url: str, sqlite_database: StoreDatabase
) -> None:
    """Between SIGSTOP and SIGCONT the clock counts at most one second, and a worker that keeps heartbeating keeps its
    lease.
    """
    server = make_server(sqlite_url, environ=NO_TAKEOVER_GRACE)
    ledger = Ledger(server)
    clocks = ClockAudit(server, ledger)
    await server.start()
    async with Load(server, ledger, Random(6), leases_ms=[3_000]) as load:
        await asyncio.sleep(LOAD_SECONDS)
        await clocks.read()
        await server.freeze(4)
        await clocks.read()
        await asyncio.sleep(LOAD_SECONDS)
        load.pause()
        await load.wait_idle()
    await audit_workers(server, ledger)
    assert ledger.lapsed("unary") + ledger.lapsed("batch") == []
    assert ledger.in_doubt == 0
    await final_audit(server, sqlite_database, ledger)
    check(ledger)


async def test_the_clock_counts_at_most_a_second_of_a_stop_without_load(
    make_server: MakeServer, sqlite_url: str
) -> None:
    """Without load, no commit is under way that would stop the clock."""
    server = make_server(sqlite_url)
    ledger = Ledger(server)
    clocks = ClockAudit(server, ledger)
    await server.start()
    await clocks.read()
    await server.freeze(2.5)
    await clocks.read()
    check(ledger)
