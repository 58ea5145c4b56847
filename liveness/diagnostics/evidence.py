"""Collects the evidence for a death certificate that is not in the worker's state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from liveness.clock import Clock
from liveness.diagnostics.heartbeat_history import HeartbeatHistory
from liveness.diagnostics.recent_deaths import RecentDeaths
from liveness.diagnostics.stalls import Stalls
from liveness.domain.death_certificate import DeathEvidence, Stall
from liveness.domain.events import Activation, ShardTaken, WorkerEvent
from liveness.domain.keys import WorkerKey
from liveness.domain.worker import Worker
from liveness.store.api import ShardSnapshot

HISTORIES_MAX = 100_000
"""How many workers of a node have their last heartbeats kept, about 100 bytes each."""


class EvidenceSources:
    """Evidence that the shards of a node share."""

    __slots__ = ("clock", "histories_max", "recent_deaths", "stalls")

    def __init__(self, clock: Clock, shard_count: int) -> None:
        self.clock = clock
        self.stalls = Stalls()
        self.recent_deaths = RecentDeaths(clock)
        self.histories_max = max(1, HISTORIES_MAX // shard_count)


class EvidenceCollector:
    __slots__ = ("_earlier_offset_ms", "_takeover_times", "heartbeat_history", "sources")

    def __init__(self, sources: EvidenceSources, snapshot: ShardSnapshot) -> None:
        self.sources = sources
        self.heartbeat_history = HeartbeatHistory(sources.histories_max)
        self._takeover_times = {
            entry.observed_ms: entry.wall_ms for entry in snapshot.tail if isinstance(entry.event, ShardTaken)
        }
        """Wall times of take-overs, by their observed times."""
        self._takeover_times[snapshot.observed_ms] = snapshot.taken_wall_ms
        first = snapshot.tail[0] if snapshot.tail else None
        self._earlier_offset_ms = (
            first.wall_ms - first.observed_ms if first else snapshot.taken_wall_ms - snapshot.observed_ms
        )
        """Wall time minus observed time at the last checkpoint, or about then."""

    def observe(self, before: Worker | None, event: WorkerEvent, after: Worker | None) -> None:
        """Start the worker's heartbeat history when a lease begins, and drop it when the lease ends."""
        if isinstance(event, Activation) and after is not None and after.renewed_wall_ms is not None:
            self.heartbeat_history.start_lease(after.number, after.renewed_wall_ms)
        elif before is not None:
            self.heartbeat_history.forget(before.number)

    def record_death(self, key: WorkerKey, worker: Worker) -> None:
        profile = worker.shared.profile
        self.sources.recent_deaths.record_death(key, profile.host_name, profile.build_id)

    def withdraw_death(self, key: WorkerKey) -> None:
        self.sources.recent_deaths.withdraw_death(key)

    def collect(
        self, key: WorkerKey, worker: Worker, wall_ms: int, takeovers: Sequence[int]
    ) -> DeathEvidence:
        """Return the evidence for a death that `record_death` recorded. `wall_ms`: when it is recorded. `takeovers`:
        observed times, oldest first."""
        sources, last_ms, last_wall_ms = self.sources, worker.renewed_ms, worker.renewed_wall_ms
        assert last_wall_ms is not None, "recovery estimates it where it was not stored"
        heartbeats = self.heartbeat_history.times_of(worker.number, last_wall_ms)
        stalls: tuple[Stall, ...] = ()
        if sources.stalls.kept or (takeovers and takeovers[-1] > last_ms):
            stalls = self._stalls(last_wall_ms, wall_ms, [at for at in takeovers if at > last_ms])
        return DeathEvidence(heartbeats, stalls, sources.recent_deaths.deaths_with(key))

    def _stalls(self, from_wall_ms: int, to_wall_ms: int, takeovers: Iterable[int]) -> tuple[Stall, ...]:
        found = self.sources.stalls.between(from_wall_ms, to_wall_ms)
        # The log has the wall times of take-overs; of one before the last checkpoint only the observed time is read back.
        found += [
            Stall(self._takeover_times.get(at_ms, at_ms + self._earlier_offset_ms)) for at_ms in takeovers
        ]
        return tuple(sorted(found, key=lambda stall: stall.wall_ms))
