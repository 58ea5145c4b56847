"""Collects the evidence for a death certificate that is not in the worker's state."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from liveness.clock import Clock
from liveness.diagnostics.heartbeat_history import HeartbeatHistory
from liveness.diagnostics.recent_deaths import RecentDeaths
from liveness.diagnostics.stalls import Stalls
from liveness.domain.death_certificate import DeathEvidence, Stall
from liveness.domain.events import Activation, WorkerEvent
from liveness.domain.keys import WorkerKey
from liveness.domain.worker import Worker
from liveness.store.api import ShardSnapshot

HISTORIES_MAX = 100_000
"""How many workers of a node have their last heartbeats kept, about 100 bytes each."""
DRIFT_MS = 100
ANCHORS_KEPT = 64


class EvidenceSources:
    """Evidence that the shards of a node share."""

    __slots__ = ("clock", "histories_max", "recent_deaths", "stalls")

    def __init__(self, clock: Clock, shard_count: int) -> None:
        self.clock = clock
        self.stalls = Stalls()
        self.recent_deaths = RecentDeaths(clock)
        self.histories_max = max(1, HISTORIES_MAX // shard_count)


class WallTimeConverter:
    """Estimates wall times from observed times, for people. The observed clock stands still now and then, so the
    difference between the two grows."""

    __slots__ = ("_anchors", "offset_ms")

    def __init__(self) -> None:
        self.offset_ms = 0
        """Wall time minus observed time, now."""
        self._anchors: deque[tuple[int, int]] = deque(maxlen=ANCHORS_KEPT)
        """Since when, on the observed clock, which offset applies; oldest first."""

    def add_anchor(self, observed_ms: int, wall_ms: int) -> None:
        """Record that both times are the same moment. Moments are added in order."""
        offset_ms = wall_ms - observed_ms
        if not self._anchors or abs(offset_ms - self.offset_ms) > DRIFT_MS:
            self.offset_ms = offset_ms
            self._anchors.append((observed_ms, offset_ms))

    def convert(self, observed_ms: int) -> int:
        """Convert one time. Before the first anchor, the clock is assumed to have run without a break."""
        for since_ms, offset_ms in reversed(self._anchors):
            if since_ms <= observed_ms:
                return observed_ms + offset_ms
        return observed_ms + self._anchors[0][1]

    def convert_all(self, times_ms: Sequence[int]) -> tuple[int, ...]:
        """Convert times that are in order, oldest first."""
        if times_ms[0] >= self._anchors[-1][0]:
            offset_ms = self.offset_ms
            return tuple([at_ms + offset_ms for at_ms in times_ms])
        return tuple(map(self.convert, times_ms))


class EvidenceCollector:
    __slots__ = ("heartbeat_history", "sources", "wall_times")

    def __init__(self, sources: EvidenceSources, snapshot: ShardSnapshot) -> None:
        self.sources = sources
        self.heartbeat_history = HeartbeatHistory(sources.histories_max)
        self.wall_times = WallTimeConverter()
        if snapshot.tail:
            # The last log entry before the take-over tells how far the clock was behind then.
            self.wall_times.add_anchor(snapshot.tail[-1].observed_ms, snapshot.tail[-1].wall_ms)
        self.wall_times.add_anchor(snapshot.observed_ms, sources.clock.wall_ms())

    def observe(self, before: Worker | None, event: WorkerEvent, after: Worker | None) -> None:
        """Start the worker's heartbeat history when a lease begins, and drop it when the lease ends."""
        if isinstance(event, Activation) and after is not None:
            self.heartbeat_history.start_lease(after.number, event.at_ms)
        elif before is not None:
            self.heartbeat_history.forget(before.number)

    def record_death(self, key: WorkerKey, worker: Worker) -> None:
        self.sources.recent_deaths.record_death(key, worker.profile.host_name, worker.profile.build_id)

    def collect(self, key: WorkerKey, worker: Worker, now_ms: int, takeovers: Sequence[int]) -> DeathEvidence:
        """Return the evidence for a death that `record_death` recorded. `takeovers`: observed times, oldest first."""
        sources, last_ms = self.sources, worker.renewed_ms
        heartbeats = self.wall_times.convert_all(self.heartbeat_history.times_of(worker.number, last_ms))
        stalls: tuple[Stall, ...] = ()
        if sources.stalls.kept or (takeovers and takeovers[-1] > last_ms):
            stalls = self._stalls(
                heartbeats[-1], self.wall_times.convert(now_ms), [at for at in takeovers if at > last_ms]
            )
        return DeathEvidence(heartbeats, stalls, sources.recent_deaths.deaths_with(key))

    def _stalls(self, from_wall_ms: int, to_wall_ms: int, takeovers: Iterable[int]) -> tuple[Stall, ...]:
        found = self.sources.stalls.between(from_wall_ms, to_wall_ms)
        found += [Stall(self.wall_times.convert(at_ms)) for at_ms in takeovers]
        return tuple(sorted(found, key=lambda stall: stall.wall_ms))
