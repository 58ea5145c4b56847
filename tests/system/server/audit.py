"""Compares a server, and the database that it left, with the ledger."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import grpc

from liveness.store.api import TaskState
from liveness.store.codec import decode_bound_activity
from liveness.store.schema import RENEWALS_KIND, metadata
from liveness.v1 import admin_pb2, service_pb2, worker_pb2
from tests.databases import StoreDatabase
from tests.system.server.ledger import NAMESPACE, Ledger
from tests.system.server.server_process import ServerLike, ServerProcess

SETBACK_MS_MAX = 1_000
"""The observed time that a crash may cost a shard: the clock is stored at least this often."""
SETTLE_SECONDS_MAX = 60


class _Reading(NamedTuple):
    asked_at: float
    shards: dict[int, admin_pb2.Shard]
    starts: int


class ClockAudit:
    """Checks that a shard's observed clock never runs faster than the time in which its server listened."""

    def __init__(self, server: ServerProcess, ledger: Ledger) -> None:
        self._server = server
        self._ledger = ledger
        self._last: _Reading | None = None

    async def read(self) -> None:
        asked_at, starts = time.monotonic(), self._server.starts
        answer = await self._server.admin.ListShards(admin_pb2.ListShardsRequest())
        reading = _Reading(asked_at, {shard.shard_id: shard for shard in answer.shards}, starts)
        if self._last is not None:
            self._compare(self._last, reading, time.monotonic())
        self._last = reading

    def _compare(self, before: _Reading, now: _Reading, answered_at: float) -> None:
        passed_ms_max = self._server.listening_ms(before.asked_at, answered_at)
        setback_ms_max = SETBACK_MS_MAX if now.starts > before.starts else 0
        for shard_id, shard in now.shards.items():
            old = before.shards[shard_id]
            moved_ms = shard.observed_ms - old.observed_ms
            if moved_ms > passed_ms_max:
                self._ledger.violate(f"shard {shard_id} counted {moved_ms} ms in {passed_ms_max:.0f} ms")
            if moved_ms < -setback_ms_max:
                self._ledger.violate(f"the clock of shard {shard_id} went back by {-moved_ms} ms")
            if shard.epoch - old.epoch < now.starts - before.starts:
                self._ledger.violate(f"shard {shard_id} was taken over without raising its epoch")
            if shard.last_sequence < old.last_sequence:
                self._ledger.violate(f"shard {shard_id} went back to sequence {shard.last_sequence}")


async def audit_workers(server: ServerLike, ledger: Ledger) -> None:
    """Read each worker, which resolves what was in doubt. No call may be under way."""

    async def look(key: str) -> None:
        ledger.seen(key, await describe(server, key))

    await asyncio.gather(*map(look, ledger.keys()))
    for key in ledger.doubtful():
        ledger.violate(f"{key}: still in doubt after it was read")


async def describe(server: ServerLike, key: str) -> worker_pb2.Worker | None:
    request = service_pb2.DescribeWorkerRequest(namespace=NAMESPACE, worker_instance_key=key)
    try:
        return (await server.liveness.DescribeWorker(request)).worker
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.NOT_FOUND:
            return None
        raise


async def expire_all_leases(server: ServerLike, ledger: Ledger) -> None:
    """Wait until each silent worker has expired and its tasks are done."""
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    count = service_pb2.CountWorkersRequest(namespace=NAMESPACE)
    count.filter.states.append(worker_pb2.WORKER_STATE_ACTIVE)
    open_tasks = admin_pb2.ListTasksRequest(namespace=NAMESPACE, page_size=1)
    while True:
        active = (await server.liveness.CountWorkers(count)).total
        # A lease's tasks are committed with its end, so the list is empty only when all of them are done.
        if not active and not (await server.admin.ListTasks(open_tasks)).tasks:
            break
        if time.monotonic() > deadline:
            ledger.violate(
                f"{active} workers, or tasks, are still open {SETTLE_SECONDS_MAX} s after the last call"
            )
            break
        await asyncio.sleep(0.05)
    await audit_workers(server, ledger)


# -- the database, after the last server is gone


Row = dict[str, Any]


async def audit_database(store_database: StoreDatabase, ledger: Ledger, *, compacted: bool) -> int:
    """Audit every row, and return the number of log rows. `compacted`: renewals behind a checkpoint may be gone."""
    dump = await store_database.dump()
    tables: dict[str, list[Row]] = {
        name: [
            dict(zip(metadata.tables[name].columns.keys(), row, strict=True)) for row in rows
        ]
        for name, rows in dump.items()
    }  # fmt: skip
    log = sorted(tables["log"], key=lambda row: row["id"])
    checkpoints = {row["shard_id"]: row["seq"] for row in tables["checkpoints"]}
    by_shard: defaultdict[int, list[Row]] = defaultdict(list)
    by_worker: defaultdict[str, list[Row]] = defaultdict(list)
    for row in log:
        by_shard[row["shard_id"]].append(row)
        if row["worker_key"] is not None:
            by_worker[row["worker_key"]].append(row)
    for head in tables["shards"]:
        shard_id = head["shard_id"]
        _audit_order(head, by_shard[shard_id], checkpoints.get(shard_id, 0) if compacted else 0, ledger)
    for key in ledger.keys():  # noqa: SIM118  # a method of the ledger, not of a mapping
        _audit_history(key, by_worker[key], ledger)
    _audit_tasks(tables["tasks"], tables["activities"], ledger)
    return len(log)


def _audit_order(head: Row, log: list[Row], compacted_through: int, ledger: Ledger) -> None:
    name = f"shard {head['shard_id']}"
    sequences = [row["seq"] for row in log]
    if sequences != sorted(set(sequences)):
        ledger.violate(f"{name}: the log is out of order")
    missing = set(range(1, head["last_seq"] + 1)) - set(sequences)
    if any(sequence > compacted_through for sequence in missing) or sequences[-1:] > [head["last_seq"]]:
        ledger.violate(f"{name}: the log has gaps at {sorted(missing)[-10:]}, its head is {head['last_seq']}")
    epochs = [json.loads(row["payload"])["epoch"] for row in log if row["kind"] == "ShardTaken"]
    if epochs != list(range(1, head["epoch"] + 1)):
        ledger.violate(f"{name}: taken with epochs {epochs}, and now at {head['epoch']}")
    times = [row["observed_ms"] for row in log if row["kind"] != RENEWALS_KIND]
    if times != sorted(times):
        ledger.violate(f"{name}: the log's clock runs backwards")


def _audit_history(key: str, log: list[Row], ledger: Ledger) -> None:
    """Check that no lease ended early on the shard's own clock, and that each lease began with a new epoch."""
    epoch = lease_ms = heard_ms = 0
    for row in log:
        event = json.loads(row["payload"])
        if row["kind"] == "WorkerDeactivated":
            silent_ms = event["at_ms"] - heard_ms
            if event["reason"] == worker_pb2.INACTIVE_REASON_LEASE_EXPIRED and silent_ms < lease_ms:
                ledger.violate(f"{key}: a lease of {lease_ms} ms ended after {silent_ms} ms of silence")
            continue
        if "epoch" in event:
            if event["epoch"] != epoch + 1:
                ledger.violate(f"{key}: epoch {event['epoch']} follows {epoch}")
            epoch = event["epoch"]
        lease_ms = event.get("granted_ms", lease_ms)
        heard_ms = row["observed_ms"]


def _audit_tasks(tasks: Iterable[Row], activities: Iterable[Row], ledger: Ledger) -> None:
    """Check that each lost binding was rescheduled once, and that nothing else was."""
    expected: Counter[tuple[str, int, str]] = Counter()
    for key in ledger.keys():  # noqa: SIM118  # a method of the ledger, not of a mapping
        view = ledger.view(key)
        for loss in view.losses if view is not None else ():
            expected.update((key, loss.epoch, name) for name in loss.activities)
    found: Counter[tuple[str, int, str]] = Counter()
    available = {row["workflow_id"]: row for row in activities}
    for row in tasks:
        if row["namespace"] != NAMESPACE:
            continue  # a worker that is not in the ledger
        name = decode_bound_activity(row["activity"]).workflow_id
        found[row["worker_key"], row["lease_epoch"], name] += 1
        if row["state"] != TaskState.DONE:
            ledger.violate(f"the task of {name} is {TaskState(row['state']).name}: {row['last_error']}")
        if name not in available:
            ledger.violate(f"{name} was rescheduled but is not available")
    _compare(expected, found, ledger)


def _compare(expected: Mapping[Any, int], found: Mapping[Any, int], ledger: Ledger) -> None:
    for lost_binding in expected.keys() | found.keys():
        if expected.get(lost_binding, 0) != found.get(lost_binding, 0):
            ledger.violate(
                f"{lost_binding} should be rescheduled {expected.get(lost_binding, 0)} times, and was {found.get(lost_binding, 0)} times"
            )
