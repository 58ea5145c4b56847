"""Checks what the expiry throttle may hold back and for how long, and that storms occur.

The limits are computed from the log and from the operator's settings. The throttle's own records are read only to see
which workers are held, never for how long each may be held.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING

from liveness.domain.storm import StormPhase
from liveness.engine.shard import Shard
from liveness.expiry.throttle import ExpiryHold, StormState
from tests.simulation.audit import ACTIVE, WorkerRecord
from tests.simulation.labels import Key, worker_label

if TYPE_CHECKING:
    from tests.simulation.node_host import NodeHost
    from tests.simulation.world import World

WINDOW_S = 60.0
"""Expiries within this time count towards a storm."""
SHARE = 0.3
LATE_MS_MAX = 1_000
PULSE_MS = 100


class StormChecks:
    def __init__(self, world: World) -> None:
        self._world = world
        self._sometimes = world.sometimes
        self._storm_settings = world.plan.storm_settings
        self._held: dict[Key, StormPhase] = {}
        """The workers that were held at the last check."""
        self._held_since: dict[Key, tuple[int, int]] = {}
        """Every worker that was ever held: the epoch and sequence of the heartbeat before."""
        self.to_release: dict[str, float] = {}
        """Namespaces whose next storm an operator releases, after this many seconds."""
        self._seen_storms: list[StormState] = []
        """Storms that were seen before, compared by identity."""
        self._fell: defaultdict[str, deque[float]] = defaultdict(deque)
        """The times at which workers of a namespace expired, or sent a heartbeat after the end of their lease."""
        self._reach_s = (
            WINDOW_S + 2 * max(world.plan.leases_ms) / 1_000 + self._storm_settings.line_s(world.plan.workers)
        )

    def listen(self) -> None:
        audit = self._world.audit
        audit.on_silence_ended.append(self._ended)
        audit.on_late_renewal.append(self._came_back_late)
        audit.on_taken.append(self._taken)

    # -- limits

    def max_hold_s(self, namespace: str, lease_s: float) -> float:
        """Return by how much a storm may postpone the end of such a lease now; 0 if there can be no storm."""
        struck = self._recent_deaths(namespace)
        if not self._storm_settings.hold_ms or struck < self._storm_settings.min_workers:
            return 0.0
        if self._world.plan.nodes_max == 1 and struck <= SHARE * (struck + self._healthy(namespace)):
            return 0.0  # several nodes decide by what each of them knows
        return self._storm_settings.holds_ms(round(lease_s * 1_000)) / 1_000 + self._storm_settings.line_s(
            struck
        )

    def _recent_deaths(self, namespace: str) -> int:
        fell, now = self._fell[namespace], self._world.now()
        while fell and fell[0] < now - self._reach_s:
            fell.popleft()
        return len(fell) + sum(now >= _due(worker) for worker in self._active(namespace))

    def _healthy(self, namespace: str) -> int:
        now = self._world.now()
        return sum(now < _due(worker) for worker in self._active(namespace))

    def _active(self, namespace: str) -> list[WorkerRecord]:
        workers = self._world.audit.workers.items()
        return [worker for key, worker in workers if key[0] == namespace and worker.state == ACTIVE]

    # -- observation

    def look(self) -> None:
        held: dict[Key, StormPhase] = {}
        for node_host in self._world.node_hosts:
            process = node_host.process
            if node_host.server is None or process is None or process.stopped:
                continue
            for namespace, storm_state in node_host.server.node.throttle.active_storms.items():
                if storm_state.held:
                    self._count_situations(node_host, namespace, storm_state)
                for key, hold in storm_state.held.items():
                    worker = (key.namespace, key.instance_key)
                    held[worker] = storm_state.phase
                    if (seen := self._world.audit.workers.get(worker)) is not None:
                        self._held_since[worker] = (seen.epoch, seen.sequence)
                    self._check(node_host, worker, hold)
        self._held = held

    def _count_situations(self, node_host: NodeHost, namespace: str, storm_state: StormState) -> None:
        if not any(storm_state is met for met in self._seen_storms):
            self._seen_storms.append(storm_state)
            self._world.note(
                f"{node_host.host} holds {len(storm_state.held)} leases in a storm over {namespace}",
                node_host.host,
            )
            self._sometimes("storm held leases")
            assert node_host.server is not None
            death_rate = node_host.server.node.throttle.death_rate
            if len(storm_state.held) + death_rate.recent(namespace) < self._storm_settings.min_workers:
                self._sometimes("storm learned from another node")
            if (after_s := self.to_release.pop(namespace, None)) is not None:
                self._world.note(f"the operator releases the storm over {namespace}", node_host.host)
                self._world.later(after_s, lambda: self._world.client.release_storm(namespace))
        if any(hold.slot_ms is not None for hold in storm_state.held.values()):
            self._sometimes("held worker waited in the paced queue")

    def _check(self, node_host: NodeHost, key: Key, hold: ExpiryHold) -> None:
        audit, plan = self._world.audit, self._world.plan
        holder = hold.shard
        assert isinstance(holder, Shard)
        worker, shard = audit.workers.get(key), audit.shards[holder.id]
        if worker is None or worker.state != ACTIVE or shard.epoch != holder.epoch:
            return  # the holding node has lost the shard and does not know yet
        about = (worker_label(key), f"shard {holder.id}", node_host.host)
        deadline_ms = worker.renewed_ms + worker.granted_ms
        over_ms = holder.now_ms() - deadline_ms
        if over_ms < -PULSE_MS:
            self._world.report(
                "storm",
                f"{worker_label(key)} is held {-over_ms} ms before its lease is over: it was heard meanwhile",
                about,
            )
        own_ms = self._storm_settings.holds_ms(worker.granted_ms)
        is_inherited = worker.renewed_ms <= shard.taken_ms
        grace_ms = shard.taken_ms + plan.grace_ms - deadline_ms if is_inherited else 0
        line_ms = self._storm_settings.line_s(self._recent_deaths(key[0])) * 1_000
        if over_ms > max(own_ms, grace_ms) + line_ms + LATE_MS_MAX:
            self._world.report(
                "storm",
                f"{worker_label(key)} is held {over_ms} ms after its lease of {worker.granted_ms} ms was over; {own_ms} ms, and "
                f"{line_ms:.0f} ms in line, are the most",
                about,
            )

    # -- results

    def _ended(self, key: Key, worker: WorkerRecord) -> None:
        if not worker.died_with:
            return
        self._fell[key[0]].append(self._world.now())
        phase = self._held.pop(key, None)
        if phase is not None:
            released = phase is StormPhase.RELEASED or self._is_released(key[0])
            self._sometimes("storm released by an operator" if released else "storm drained after its hold")

    def _came_back_late(self, key: Key) -> None:
        self._fell[key[0]].append(self._world.now())
        if self._held.pop(key, None) is not None:
            self._sometimes("held worker came back with its lease")
        else:
            self._sometimes("lease saved by the grace after a take-over")

    def _taken(self, shard_id: int, before: str, after: str) -> None:
        for key, heard in self._held_since.items():
            worker = self._world.audit.workers.get(key)
            if worker is None or worker.shard_id != shard_id or worker.state != ACTIVE:
                continue
            if (worker.epoch, worker.sequence) == heard:
                self._sometimes("take-over during a storm")
                break

    def _is_released(self, namespace: str) -> bool:
        servers = [node_host.server for node_host in self._world.node_hosts if node_host.server is not None]
        active_storms = [server.node.throttle.active_storms.get(namespace) for server in servers]
        return any(
            storm_state is not None and storm_state.phase is StormPhase.RELEASED
            for storm_state in active_storms
        )


def _due(worker: WorkerRecord) -> float:
    return worker.heard + worker.granted_ms / 1_000
