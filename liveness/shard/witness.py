"""What a shard can say about a worker's last moments, besides what the worker's state says."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from liveness.clock import Clock
from liveness.domain.death import Circumstances, Stall
from liveness.domain.events import Activation, WorkerEvent
from liveness.domain.keys import WorkerKey
from liveness.domain.worker import Worker
from liveness.shard.brake import Brake
from liveness.shard.obituaries import Obituaries
from liveness.shard.rhythms import Rhythms
from liveness.shard.stalls import Stalls
from liveness.store.api import ShardImage

RHYTHMS_MAX = 100_000
"""Per node: workers whose last heartbeats are kept, about 100 bytes each."""
DRIFT_MS = 100
ANCHORS_KEPT = 64


class Surroundings:
    """What the shards of a node have in common."""

    __slots__ = ("brake", "clock", "obituaries", "rhythms_max", "stalls")

    def __init__(self, clock: Clock, shard_count: int, brake: Brake) -> None:
        self.clock = clock
        self.brake = brake
        self.stalls = Stalls()
        self.obituaries = Obituaries(clock)
        self.rhythms_max = max(1, RHYTHMS_MAX // shard_count)


class WallTimes:
    """Translates observed times, which stood still now and then, into wall times. Estimates, for people."""

    __slots__ = ("_anchors", "offset_ms")

    def __init__(self) -> None:
        self.offset_ms = 0
        """Of now."""
        self._anchors: deque[tuple[int, int]] = deque(maxlen=ANCHORS_KEPT)
        """Since when, on the observed clock, how far it is behind."""

    def note(self, observed_ms: int, wall_ms: int) -> None:
        """Both are the same moment, and none is earlier than those noted before."""
        offset_ms = wall_ms - observed_ms
        if not self._anchors or abs(offset_ms - self.offset_ms) > DRIFT_MS:
            self.offset_ms = offset_ms
            self._anchors.append((observed_ms, offset_ms))

    def of(self, observed_ms: int) -> int:
        """What was before the first that was noted is taken to have passed without a break."""
        for since_ms, offset_ms in reversed(self._anchors):
            if since_ms <= observed_ms:
                return observed_ms + offset_ms
        return observed_ms + self._anchors[0][1]

    def of_all(self, times_ms: Sequence[int]) -> tuple[int, ...]:
        """The same for times in order."""
        if times_ms[0] >= self._anchors[-1][0]:
            offset_ms = self.offset_ms
            return tuple([at_ms + offset_ms for at_ms in times_ms])
        return tuple(map(self.of, times_ms))


class Witness:
    __slots__ = ("rhythms", "surroundings", "wall")

    def __init__(self, surroundings: Surroundings, image: ShardImage) -> None:
        self.surroundings = surroundings
        self.rhythms = Rhythms(surroundings.rhythms_max)
        self.wall = WallTimes()
        if image.tail:
            # Before the take-over, at a time that only the log knows.
            self.wall.note(image.tail[-1].observed_ms, image.tail[-1].wall_ms)
        self.wall.note(image.observed_ms, surroundings.clock.wall_ms())

    def saw(self, before: Worker | None, event: WorkerEvent, after: Worker | None) -> None:
        """A lease began, or ended."""
        if isinstance(event, Activation) and after is not None:
            self.rhythms.begin(after.number, event.at_ms)
        elif before is not None:
            self.rhythms.forget(before.number)

    def enter(self, key: WorkerKey, worker: Worker) -> None:
        """A worker is about to be declared dead."""
        self.surroundings.obituaries.enter(key, worker.profile.host_name, worker.profile.build_id)

    def circumstances(
        self, key: WorkerKey, worker: Worker, now_ms: int, takeovers: Sequence[int]
    ) -> Circumstances:
        """Of the death of a worker that was entered. `takeovers`: observed times, oldest first."""
        surroundings, last_ms = self.surroundings, worker.renewed_ms
        heard = self.wall.of_all(self.rhythms.of(worker.number, last_ms))
        stalls: tuple[Stall, ...] = ()
        if surroundings.stalls.kept or (takeovers and takeovers[-1] > last_ms):
            stalls = self._stalls(heard[-1], self.wall.of(now_ms), [at for at in takeovers if at > last_ms])
        return Circumstances(heard, stalls, surroundings.obituaries.company(key))

    def _stalls(self, from_wall_ms: int, to_wall_ms: int, takeovers: Iterable[int]) -> tuple[Stall, ...]:
        found = self.surroundings.stalls.between(from_wall_ms, to_wall_ms)
        found += [Stall(self.wall.of(at_ms)) for at_ms in takeovers]
        return tuple(sorted(found, key=lambda stall: stall.wall_ms))
