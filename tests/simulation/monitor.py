"""Watches a world: counts the rare situations, and checks the rules that hold at all times rather than at events."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import TYPE_CHECKING

from liveness.store.errors import ShardsLost, StoreError
from liveness.v1 import service_pb2
from tests.simulation.audit import ACTIVE, WorkerRecord
from tests.simulation.database import TransactionFault
from tests.simulation.fold_check import check_fold
from tests.simulation.labels import Key, worker_label
from tests.simulation.loop import Process
from tests.simulation.network import Delivered
from tests.simulation.plan import STARVE
from tests.simulation.rpc_calls import UnaryCall

if TYPE_CHECKING:
    from tests.simulation.node_host import NodeHost
    from tests.simulation.world import World

TICK_S = 0.25
FOLDED_EVERY = 40
LATE_S_MAX = 1.0
SLACK_S = 0.25
"""Allowance for work under way at a healthy server."""

_HEARTBEATS = "/liveness.v1.LivenessService/RecordWorkerHeartbeats"


class Monitor:
    def __init__(self, world: World) -> None:
        self._world = world
        self._sometimes = world.sometimes
        self._unresolved: dict[str, TransactionFault] = {}
        self._last_fault = TransactionFault.NONE
        self._released: set[int] = set()
        self._taken_now: list[int] = []
        self._under_way: set[tuple[Key, str]] = set()
        self._cut_since: dict[Process, float] = {}
        """Processes that run and cannot reach the database, with the time since when."""

    def listen(self) -> None:
        world = self._world
        world.audit.on_taken.append(self._taken)
        world.audit.on_silence_ended.append(self._silence_ended)
        world.audit.on_replaced.append(self._replaced)
        world.database.on_transaction_fault = self._on_transaction_fault
        world.database.on_refused = self._on_refused
        world.database.on_vain = lambda: self._sometimes("take-over failed, another node was first")

    # -- the database

    def _on_transaction_fault(self, fault: TransactionFault, process: Process) -> None:
        self._last_fault = fault
        self._world.note(f"{process.host}: a transaction: {fault.value}", process.host)
        if fault is TransactionFault.CRASH_BEFORE:
            self._sometimes("crash before commit")
        elif fault is TransactionFault.CRASH_AFTER:
            self._sometimes("crash between commit and answer")
        elif fault in (
            TransactionFault.UNKNOWN_DONE,
            TransactionFault.UNKNOWN_LOST,
            TransactionFault.REJECTED,
        ):
            self._unresolved[process.host] = fault

    def _on_refused(self, error: StoreError, process: Process) -> None:
        if isinstance(error, ShardsLost):
            self._sometimes("zombie owner refused")
            self._world.note(f"{process.host} was refused: {error}", process.host)

    def committed(self, driver: sqlite3.Connection, writer: str) -> None:
        self._last_fault = TransactionFault.NONE
        self._released = {
            id for (id,) in driver.execute("SELECT shard_id FROM shards WHERE owner = '' AND epoch > 0")
        }
        while self._taken_now:
            check_fold(self._world, self._taken_now.pop())
        node_host = self._node_host(writer)
        if node_host is not None:
            process = node_host.process
            if process is None or process.name != _run_of(writer):
                self._sometimes("commit took effect after its process was killed")
            elif process.stopped:
                self._sometimes("commit took effect while its process was stopped")

    def _node_host(self, owner: str) -> NodeHost | None:
        host = owner.partition(":")[0]
        return next((node_host for node_host in self._world.node_hosts if node_host.host == host), None)

    def _taken(self, shard_id: int, before: str, after: str) -> None:
        world, sometimes = self._world, self._sometimes
        self._taken_now.append(shard_id)
        world.note(
            f"{after} takes shard {shard_id} from {before or 'no node'}",
            f"shard {shard_id}",
            after.partition(":")[0],
        )
        if self._last_fault is TransactionFault.UNKNOWN_DONE:
            sometimes("lost answer of a take-over")
        host = after.partition(":")[0]
        resolved = self._unresolved.pop(host, None)
        if resolved is TransactionFault.UNKNOWN_DONE and self._last_fault is TransactionFault.NONE:
            sometimes("unknown commit had been applied")
        elif resolved is TransactionFault.UNKNOWN_LOST:
            sometimes("unknown commit had not been applied")
        elif resolved is TransactionFault.REJECTED:
            sometimes("commit rolled back, shards read again")
        elif resolved is not None:
            self._unresolved[host] = resolved
        if shard_id in self._released:
            sometimes("shard handed over gracefully")
        elif before and before.partition(":")[0] != host:
            self._shards_lost(before)
        driver = world.database.driver
        if driver.execute(
            "SELECT 1 FROM tasks WHERE shard_id = ? AND state IN (1, 2)", (shard_id,)
        ).fetchone():
            sometimes("take-over during fan-out")
        if driver.execute("SELECT 1 FROM checkpoints WHERE shard_id = ?", (shard_id,)).fetchone():
            sometimes("take-over after a checkpoint")

    def _shards_lost(self, owner: str) -> None:
        node_host = self._node_host(owner)
        assert node_host is not None
        process = node_host.process
        if process is None or process.name != _run_of(owner):
            self._sometimes("owner killed, shard taken by another")
        elif process.stopped:
            self._sometimes("stopped owner lost its shards")
        elif node_host.host in self._world.database.cut:
            self._sometimes("owner cut off from the database lost its shards")

    # -- workers

    def _silence_ended(self, key: Key, worker: WorkerRecord) -> None:
        """A lease has expired. If its time was over, the worker must have stopped trusting it before."""
        world = self._world
        if worker.died_with != worker.session:
            return
        self._check_nothing_waits(key, worker)
        for run in world.runs.get(key, ()):
            if run.session == worker.session and run.process.alive and world.plan.acts == (STARVE,):
                world.report(
                    "no early expiry",
                    f"{run.session} lost its lease, and nothing was wrong but that nodes lacked processor time",
                    (worker_label(key),),
                )
            if run.session == worker.session and run.process.alive and run.trusts_its_lease:
                world.report(
                    "no early expiry",
                    f"{run.session} still relies on a lease that the server has ended",
                    (worker_label(key),),
                )

    def _check_nothing_waits(self, key: Key, worker: WorkerRecord) -> None:
        """A lease has expired. No heartbeat that arrived at its owner before the end may be unheard."""
        world = self._world
        lease_ends = worker.heard + worker.granted_ms / 1_000
        node_host = self._node_host(world.audit.shards[worker.shard_id].owner)
        listener = None if node_host is None else world.network.at(node_host.address)
        for waiting in () if listener is None else listener.waiting.values():
            call = waiting.call
            if call.path != _HEARTBEATS or waiting.arrived > lease_ends or not waiting.is_wanted:
                continue
            assert isinstance(call, UnaryCall)
            request = service_pb2.RecordWorkerHeartbeatsRequest.FromString(call.body)
            for beat in request.heartbeats:
                if (request.namespace, beat.worker_instance_key, beat.session_id) == (
                    *key,
                    worker.session,
                ) and (beat.sequence > worker.sequence):
                    world.report(
                        "no early expiry",
                        f"heartbeat {beat.sequence} of {beat.session_id} has waited unheard for "
                        f"{world.now() - waiting.arrived:.3f} s, and arrived {lease_ends - waiting.arrived:.3f} s before its lease ended",
                        (worker_label(key), node_host.host if node_host else ""),
                    )

    def _replaced(self, key: Key, before: str) -> None:
        if (key, before) in self._under_way:
            self._sometimes("session replaced while a heartbeat of the old one was under way")

    def heartbeat_arrived(self, source: str, target: str, path: str, body: bytes) -> None:
        request = service_pb2.RecordWorkerHeartbeatsRequest.FromString(body)
        forwarded = source.startswith("node")
        for beat in request.heartbeats:
            key = (request.namespace, beat.worker_instance_key)
            self._under_way.add((key, beat.session_id))
            worker = self._world.audit.workers.get(key)
            if (
                worker is not None
                and (worker.state, worker.session) == (ACTIVE, beat.session_id)
                and self._world.now()
                > worker.heard + worker.granted_ms / 1_000
                >= self._world.network.served_arrival
            ):
                self._sometimes("lease was over while its heartbeat waited to be heard")
            if forwarded:
                self._sometimes("heartbeat forwarded to its owner by another node")
            elif (beat.session_id, beat.sequence) in self._world.audit.applied[key]:
                self._sometimes("heartbeat sent again was applied only once")
            self._world.note(
                f"{target} hears heartbeat {beat.sequence} of {beat.session_id} from {source}",
                worker_label(key),
                alike=f"heartbeats of {worker_label(key)}",
            )

    def answered(self, given: Delivered) -> None:
        if given.path == _HEARTBEATS:
            request = service_pb2.RecordWorkerHeartbeatsRequest.FromString(given.request)
            for beat in request.heartbeats:
                self._under_way.discard(((request.namespace, beat.worker_instance_key), beat.session_id))

    # -- periodic checks

    async def tick(self) -> None:
        world = self._world
        count = 0
        while True:
            await asyncio.sleep(TICK_S)
            count += 1
            self._look_for_doubles()
            self._check_lateness()
            self._check_readiness()
            world.storm_checks.look()
            if count % FOLDED_EVERY == 0:
                check_fold(world, world.random.randrange(world.plan.shards))

    def _look_for_doubles(self) -> None:
        world = self._world
        nodes = [node_host.server.node for node_host in world.node_hosts if node_host.server is not None]
        for shard_id in range(world.plan.shards):
            if sum(node.serves(shard_id) for node in nodes) > 1:
                self._sometimes("two nodes claim the same shard")
        active = {key for key, worker in world.audit.workers.items() if worker.state == ACTIVE}
        if any(("ns1", key) in active for namespace, key in active if namespace == "ns0"):
            self._sometimes("same key alive in two namespaces")

    def _check_readiness(self) -> None:
        world = self._world
        if world.plan.nodes_max == 1:
            return  # its database is a file
        cut_since = {}
        for node_host in world.node_hosts:
            process, server = node_host.process, node_host.server
            if (
                process is None
                or server is None
                or process.stopped
                or node_host.host not in world.database.cut
            ):
                continue
            seen_since = self._cut_since.get(process, world.now())
            # Between two cuts the host may have reached the database for less than a tick.
            since = cut_since[process] = max(seen_since, world.database.cut[node_host.host])
            if world.now() - since <= world.plan.node_lease_ms / 1_000:
                continue
            if server.membership.is_ready or server.node.shards():
                world.report(
                    "readiness",
                    f"{node_host.host} has not reached the database for {world.now() - since:.2f} s, "
                    f"{'is ready' if server.membership.is_ready else 'is not ready'} "
                    f"and serves {len(server.node.shards())} shards",
                    (node_host.host,),
                )
        self._cut_since = cut_since

    def _taken_of(self, shard_id: int) -> tuple[float, int]:
        shard = self._world.audit.shards[shard_id]
        return shard.taken_at, shard.taken_ms

    def _check_lateness(self) -> None:
        world = self._world
        plan, now = world.plan, world.now()
        settled = world.calm_since + 2 * plan.node_lease_ms / 1_000 + 5
        if now < settled:
            return
        overdue = world.audit.activities.overdue(
            settled, LATE_S_MAX + SLACK_S, self._taken_of, plan.grace_ms / 1_000
        )
        if overdue:
            world.report("bounded lateness", overdue, ())
        for key, worker in world.audit.workers.items():
            if worker.state != ACTIVE:
                continue
            lease_s = worker.granted_ms / 1_000
            shard = world.audit.shards[worker.shard_id]
            due = max(worker.heard + lease_s, settled + lease_s)
            if worker.renewed_ms <= shard.taken_ms:  # the owner inherited the lease
                due = max(due, shard.taken_at + plan.grace_ms / 1_000)
            latest = due + LATE_S_MAX + SLACK_S + lease_s * 0.002
            if now > latest and now > latest + world.storm_checks.max_hold_s(key[0], lease_s):
                world.report(
                    "bounded lateness",
                    f"{worker_label(key)} has been silent for {now - worker.heard:.2f} s with a lease of {lease_s:.1f} s and is ACTIVE",
                    (worker_label(key), f"shard {worker.shard_id}"),
                )


def _run_of(owner: str) -> str:
    host, run, _ = owner.split(":")
    return f"{host}#{run}"
