"""Storms: what the brake may put off, for how long, and that it is reached.

The limits are reckoned from the log and from what the operator has set. The brake's own book is read only to see who is
held; how long each may be, it is not asked.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING

from liveness.domain.storm import Phase
from liveness.shard.brake import Gale, Hold
from tests.simulation.audit import ACTIVE, Seen
from tests.simulation.subjects import Key, who

if TYPE_CHECKING:
    from tests.simulation.station import Station
    from tests.simulation.world import World

WINDOW_S = 60.0
"""Deaths within it count towards a storm."""
SHARE = 0.3
LATE_MS_MAX = 1_000
PULSE_MS = 100


class Storms:
    def __init__(self, world: World) -> None:
        self._world = world
        self._sometimes = world.sometimes
        self._brake = world.plan.brake
        self._held: dict[Key, Phase] = {}
        """Who was held at the last look."""
        self._held_since: dict[Key, tuple[int, int]] = {}
        """Everybody who was ever held: the epoch and sequence of the heartbeat before."""
        self.to_release: dict[str, float] = {}
        """Namespaces whose next storm an operator releases, after so many seconds."""
        self._gales: list[Gale] = []
        """That were seen before; by identity."""
        self._fell: defaultdict[str, deque[float]] = defaultdict(deque)
        """When workers of a namespace died of silence, or came back after their time."""
        self._reach_s = (
            WINDOW_S + 2 * max(world.plan.leases_ms) / 1_000 + self._brake.line_s(world.plan.workers)
        )

    def listen(self) -> None:
        audit = self._world.audit
        audit.on_silence_ended.append(self._ended)
        audit.on_late_renewal.append(self._came_back_late)
        audit.on_taken.append(self._taken)

    # -- what may be

    def may_hold_s(self, namespace: str, lease_s: float) -> float:
        """By how much a storm may put off the end of such a lease now; 0 where there can be none."""
        struck = self._struck(namespace)
        if not self._brake.hold_ms or struck < self._brake.min_workers:
            return 0.0
        if self._world.plan.nodes_max == 1 and struck <= SHARE * (struck + self._healthy(namespace)):
            return 0.0  # several nodes judge by what each of them knows
        return self._brake.holds_ms(round(lease_s * 1_000)) / 1_000 + self._brake.line_s(struck)

    def _struck(self, namespace: str) -> int:
        fell, now = self._fell[namespace], self._world.now()
        while fell and fell[0] < now - self._reach_s:
            fell.popleft()
        return len(fell) + sum(now >= _due(worker) for worker in self._active(namespace))

    def _healthy(self, namespace: str) -> int:
        now = self._world.now()
        return sum(now < _due(worker) for worker in self._active(namespace))

    def _active(self, namespace: str) -> list[Seen]:
        workers = self._world.audit.workers.items()
        return [worker for key, worker in workers if key[0] == namespace and worker.state == ACTIVE]

    # -- what is

    def look(self) -> None:
        held: dict[Key, Phase] = {}
        for station in self._world.stations:
            process = station.process
            if station.server is None or process is None or process.stopped:
                continue
            for namespace, gale in station.server.node.brake.gales.items():
                if gale.held:
                    self._meet(station, namespace, gale)
                for key, hold in gale.held.items():
                    worker = (key.namespace, key.instance_key)
                    held[worker] = gale.phase
                    if (seen := self._world.audit.workers.get(worker)) is not None:
                        self._held_since[worker] = (seen.epoch, seen.sequence)
                    self._check(station, worker, hold)
        self._held = held

    def _meet(self, station: Station, namespace: str, gale: Gale) -> None:
        if not any(gale is met for met in self._gales):
            self._gales.append(gale)
            self._world.note(
                f"{station.host} holds {len(gale.held)} leases in a storm over {namespace}", station.host
            )
            self._sometimes("storm held leases")
            assert station.server is not None
            strikes = station.server.node.brake.strikes
            if len(gale.held) + strikes.recent(namespace) < self._brake.min_workers:
                self._sometimes("storm known through another node")
            if (after_s := self.to_release.pop(namespace, None)) is not None:
                self._world.note(f"the operator releases the storm over {namespace}", station.host)
                self._world.later(after_s, lambda: self._world.client.release_storm(namespace))
        if any(hold.turn_ms is not None for hold in gale.held.values()):
            self._sometimes("held worker stood in line")

    def _check(self, station: Station, key: Key, hold: Hold) -> None:
        audit, plan = self._world.audit, self._world.plan
        worker, shard = audit.workers.get(key), audit.shards[hold.shard.id]
        if worker is None or worker.state != ACTIVE or shard.epoch != hold.shard.epoch:
            return  # who holds it is no owner any more, and does not know yet
        about = (who(key), f"shard {hold.shard.id}", station.host)
        deadline_ms = worker.renewed_ms + worker.granted_ms
        over_ms = hold.shard.now_ms() - deadline_ms
        if over_ms < -PULSE_MS:
            self._world.report(
                "storm",
                f"{who(key)} is held {-over_ms} ms before its lease is over: it was heard meanwhile",
                about,
            )
        own_ms = self._brake.holds_ms(worker.granted_ms)
        grace_ms = shard.taken_ms + plan.grace_ms - deadline_ms
        line_ms = self._brake.line_s(self._struck(key[0])) * 1_000
        if over_ms > max(own_ms, grace_ms) + line_ms + LATE_MS_MAX:
            self._world.report(
                "storm",
                f"{who(key)} is held {over_ms} ms after its lease of {worker.granted_ms} ms was over; {own_ms} ms, and "
                f"{line_ms:.0f} ms in line, are the most",
                about,
            )

    # -- what became of it

    def _ended(self, key: Key, worker: Seen) -> None:
        if not worker.died_with:
            return
        self._fell[key[0]].append(self._world.now())
        phase = self._held.pop(key, None)
        if phase is not None:
            released = phase is Phase.RELEASED or self._is_released(key[0])
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
        servers = [station.server for station in self._world.stations if station.server is not None]
        gales = [server.node.brake.gales.get(namespace) for server in servers]
        return any(gale is not None and gale.phase is Phase.RELEASED for gale in gales)


def _due(worker: Seen) -> float:
    return worker.heard + worker.granted_ms / 1_000
