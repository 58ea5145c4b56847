"""At a failpoint the process is killed, the step fails, or it takes longer than a lease; no client gets a wrong answer."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from signal import SIGKILL

import grpc
import pytest

from liveness.v1 import admin_pb2, service_pb2
from tests.crash.failpoint import MODULE, Failpoint
from tests.crash.scale import scaled
from tests.crash.webhook_receiver import WebhookReceiver
from tests.databases import StoreDatabase
from tests.system.server.audit import audit_workers
from tests.system.server.conftest import NO_TAKEOVER_GRACE, MakeServer
from tests.system.server.crash_loop import ReportResult, acknowledged, check, final_audit
from tests.system.server.ledger import Beat, Ledger
from tests.system.server.load import Load
from tests.system.server.server_process import ServerProcess

FAILPOINTS = (
    "before commit",
    "in transaction",
    "after commit",
    "before ack",
    "after ack",
    "before publish",
    "after publish",
    "before compaction",
    "after compaction",
    "before retention",
    "after retention",
    "before settling",
    "after settling",
)
TRIES = {"crash": 6, "error": 6, "delay": 3}
SOME = 30
MAINTENANCE = NO_TAKEOVER_GRACE | {
    "LIVENESS_CHECKPOINT_INTERVAL_S": "0.3",
    "LIVENESS_RETENTION_INTERVAL_S": "0.3",
}
SHORT_LIVED_NAMESPACE = "short-lived"
"""A namespace outside the audit: its events are deleted as soon as possible."""


class FailpointRun:
    def __init__(self, server: ServerProcess, ledger: Ledger, load: Load, failpoint: Failpoint) -> None:
        self.server = server
        self.ledger = ledger
        self._load = load
        self._failpoint = failpoint

    async def fail(self, point: str, how: str) -> None:
        await acknowledged(self.ledger, SOME)
        self._failpoint.arm(point, how)
        if how == "crash":
            code = await self.server.ended()
            assert code == -SIGKILL, f"it ended with {code}:\n{self.server.log_text()}"
        else:
            await self._failpoint.wait_reached()
            await acknowledged(self.ledger, SOME)
            assert self.server.running, self.server.log_text()
        self._load.pause()
        await self._load.wait_idle()
        if how == "crash":
            await self.server.disconnect()
            await self.server.start()
        await audit_workers(self.server, self.ledger)
        self._load.resume()


@asynccontextmanager
async def failpoint_run(
    server: ServerProcess,
    store_database: StoreDatabase,
    failpoint: Failpoint,
    *,
    compacted: bool = False,
    seed: int = 1,
) -> AsyncIterator[FailpointRun]:
    """Start the server, run load on it, and audit every row of its database at the end."""
    ledger = Ledger(server)
    await server.start()
    async with Load(server, ledger, Random(seed)) as load:
        yield FailpointRun(server, ledger, load, failpoint)
        load.pause()
        await load.wait_idle()
    await final_audit(server, store_database, ledger, compacted=compacted)


async def test_a_commit_survives_a_kill_before_its_answer(
    make_server: MakeServer,
    sqlite_url: str,
    sqlite_database: StoreDatabase,
    tmp_path: Path,
    report_result: ReportResult,
) -> None:
    """The unacknowledged commit is found after the restart, and the repeated heartbeat changes nothing."""
    failpoint = Failpoint(tmp_path / "failpoint")
    server = make_server(sqlite_url, environ=NO_TAKEOVER_GRACE | failpoint.environ, module=MODULE)
    async with failpoint_run(server, sqlite_database, failpoint) as run:
        await run.fail("after commit", "crash")
        assert run.ledger.in_doubt_applied > 0, (
            "no unacknowledged commit survived, so the test proves nothing"
        )
    point = "after commit × crash"
    report_result(point, row=point, tried=1, violated=len(run.ledger.violations))
    check(run.ledger)


@pytest.mark.crash_long
@pytest.mark.parametrize("point", FAILPOINTS)
async def test_a_fault_at_any_failpoint_violates_no_invariant(
    make_server: MakeServer,
    sqlite_url: str,
    sqlite_database: StoreDatabase,
    tmp_path: Path,
    report_result: ReportResult,
    point: str,
) -> None:
    failpoint = Failpoint(tmp_path / "failpoint")
    runs_maintenance = "compaction" in point or "retention" in point
    environ = (MAINTENANCE if runs_maintenance else NO_TAKEOVER_GRACE) | failpoint.environ
    seconds: dict[str, float] = {}
    violated: dict[str, int] = {}
    async with WebhookReceiver() as receiver, asyncio.TaskGroup() as beside:
        if "publish" in point:
            environ |= receiver.environ
        server = make_server(sqlite_url, environ=environ, module=MODULE)
        async with failpoint_run(
            server, sqlite_database, failpoint, compacted=runs_maintenance, seed=len(point)
        ) as run:
            come_and_go = beside.create_task(
                make_expiring_events(server) if runs_maintenance else asyncio.sleep(0)
            )
            for how, times in TRIES.items():
                began, before = time.monotonic(), len(run.ledger.violations)
                for _ in range(scaled(times)):
                    await run.fail(point, how)
                seconds[how] = time.monotonic() - began
                violated[how] = len(run.ledger.violations) - before
            come_and_go.cancel()
        if "publish" in point:
            compare_deliveries(run.ledger, receiver)
    # A violation found by the final audit may come from any of the tries.
    later = len(run.ledger.violations) - sum(violated.values())
    for how, times in TRIES.items():
        report_result(
            f"{point} × {how}",
            row=f"{point} × {how}",
            tried=scaled(times),
            violated=violated[how] + later,
            seconds=seconds[how],
        )
    check(run.ledger)


async def make_expiring_events(server: ServerProcess) -> None:
    """Bind and unbind activities, so that retention finds events to delete."""
    config = admin_pb2.UpdateConfigRequest(namespace=SHORT_LIVED_NAMESPACE)
    config.set.event_retention.FromMilliseconds(1)
    sequence = 0
    while True:
        sequence += 1
        beat = Beat("worker", "session", sequence, 60_000, frozenset([f"activity-{sequence}"]))
        request = service_pb2.RecordWorkerHeartbeatRequest(
            namespace=SHORT_LIVED_NAMESPACE, heartbeat=beat.message()
        )
        request.heartbeat.unbound_activities.extend(
            Beat("", "", 0, 0, frozenset([f"activity-{sequence - 1}"])).message().bound_activities
        )
        try:
            await server.admin.UpdateConfig(config)
            await server.liveness.RecordWorkerHeartbeat(request)
        except grpc.aio.AioRpcError:
            pass  # the next call replaces it
        except grpc.aio.UsageError:
            pass  # the channel of the killed server
        await asyncio.sleep(0.05)


def compare_deliveries(ledger: Ledger, receiver: WebhookReceiver) -> None:
    """Check that each lost binding was delivered under one id, and that nothing else was delivered."""
    expected: Counter[tuple[str, int, str]] = Counter()
    for key in ledger.keys():  # noqa: SIM118  # a method of the ledger, not of a mapping
        view = ledger.view(key)
        for loss in view.losses if view is not None else ():
            expected.update((key, loss.epoch, name) for name in loss.activities)
    found = Counter(receiver.lost.values())
    for point in expected.keys() | found.keys():
        if expected[point] != found[point]:
            ledger.violate(f"{point} was lost {expected[point]} times and delivered under {found[point]} ids")
