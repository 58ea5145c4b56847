"""What a shard can say about a worker's last moments, besides what the worker's state says."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from liveness.clock import Clock
from liveness.domain.death import Circumstances, Heard, Stall
from liveness.domain.keys import WorkerKey
from liveness.domain.worker import Worker
from liveness.shard.obituaries import Obituaries
from liveness.shard.rhythms import Rhythms
from liveness.shard.stalls import Stalls

RHYTHMS_MAX = 100_000
"""Per node: workers whose last heartbeats are kept, about 160 bytes each."""
DRIFT_MS = 100
ANCHORS_KEPT = 64


class Surroundings:
    """What the shards of a node have in common."""

    __slots__ = ("clock", "obituaries", "rhythms_max", "stalls")

    def __init__(self, clock: Clock, shard_count: int) -> None:
        self.clock = clock
        self.stalls = Stalls()
        self.obituaries = Obituaries(clock)
        self.rhythms_max = max(1, RHYTHMS_MAX // shard_count)


class WallTimes:
    """Translates observed times, which stood still now and then, into wall times. Estimates, for people."""

    __slots__ = ("_anchors", "_offset_ms")

    def __init__(self, observed_ms: int, wall_ms: int) -> None:
        self._offset_ms = wall_ms - observed_ms
        self._anchors = deque([(observed_ms, self._offset_ms)], ANCHORS_KEPT)

    def note(self, observed_ms: int, wall_ms: int) -> None:
        """Both are now."""
        offset_ms = wall_ms - observed_ms
        if abs(offset_ms - self._offset_ms) > DRIFT_MS:
            self._offset_ms = offset_ms
            self._anchors.append((observed_ms, offset_ms))

    def of(self, observed_ms: int) -> int:
        for since_ms, offset_ms in reversed(self._anchors):
            if since_ms <= observed_ms:
                return observed_ms + offset_ms
        return observed_ms + self._anchors[0][1]


class Witness:
    __slots__ = ("rhythms", "surroundings", "wall")

    def __init__(self, surroundings: Surroundings, observed_ms: int) -> None:
        self.surroundings = surroundings
        self.rhythms = Rhythms(surroundings.rhythms_max)
        self.wall = WallTimes(observed_ms, surroundings.clock.wall_ms())

    def enter(self, key: WorkerKey, worker: Worker) -> None:
        """A worker is about to be declared dead."""
        self.surroundings.obituaries.enter(key, worker.profile.host_name, worker.profile.build_id)

    def circumstances(
        self, key: WorkerKey, worker: Worker, now_ms: int, takeovers: Iterable[int]
    ) -> Circumstances:
        """Of the death of a worker that was entered. `takeovers`: observed times."""
        last_ms, wall = worker.renewed_ms, self.wall
        heard = self.rhythms.of(worker.number, last_ms)
        taken = [Stall(wall.of(at_ms)) for at_ms in takeovers if last_ms < at_ms <= now_ms]
        stalls = self.surroundings.stalls.between(wall.of(last_ms), wall.of(now_ms))
        return Circumstances(
            tuple(Heard(at_ms, wall.of(at_ms)) for at_ms in heard),
            tuple(sorted([*taken, *stalls], key=lambda stall: stall.wall_ms)) if taken or stalls else (),
            self.surroundings.obituaries.company(key),
        )
