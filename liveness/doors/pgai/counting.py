"""Which heartbeat carries what has changed between two readings of a worker's row. Pure.

The n-th heartbeat in a row may become two heartbeats of liveness, with the sequence numbers 2n + 1 and 2n + 2. The first one is
the *fence*: it counts nothing. The second one counts the difference between the row and what liveness has recorded.

A follower fences a row before it counts there for the first time. It has read the row after its predecessor did, so its number is
not lower, and every heartbeat that the predecessor may still have on its way is refused or counts the same:

- below 2n + 1, the number is stale once the fence is recorded;
- 2n + 2 is the same difference, since nothing is recorded between the fence and it. Whichever arrives first counts.

So what liveness answers after the fence is a base that only this follower changes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

COUNTER_MAX = 2**40
"""The most that one heartbeat can add."""
TOTAL_MAX = 2**63 - 1
HEARTBEATS_MAX = 2**61
"""A row with more is not followed: its sequence numbers would be too large."""
SESSION_LABEL = "pgai-session"
OFFSETS_LABEL = "pgai-offsets"


class Totals(NamedTuple):
    successes: int = 0
    errors: int = 0


class Recorded(NamedTuple):
    """What liveness has recorded about a worker."""

    session_id: str
    sequence: int = 0
    totals: Totals = Totals()
    offsets: Totals = Totals()
    """The recorded totals minus what of the row they contain. Not 0 if the row's totals have been set back, or if a new life of
    the worker began with totals of 0."""

    @property
    def counted(self) -> Totals:
        return Totals(
            self.totals.successes - self.offsets.successes, self.totals.errors - self.offsets.errors
        )

    @property
    def labels(self) -> dict[str, str]:
        labels = {SESSION_LABEL: self.session_id}
        if self.offsets != Totals():
            labels[OFFSETS_LABEL] = f"{self.offsets.successes},{self.offsets.errors}"
        return labels


class Count(NamedTuple):
    """A heartbeat that counts, and what liveness has recorded once it is applied."""

    successes: int
    errors: int
    after: Recorded


def fence_sequence(heartbeats: int) -> int:
    return 2 * heartbeats + 1


def count_sequence(heartbeats: int) -> int:
    return 2 * heartbeats + 2


def count(recorded: Recorded, heartbeats: int, row: Totals) -> Count:
    """A total that has been set back counts nothing, and is counted on from where it is now."""
    added, offsets = [], []
    for total, counted, offset, now in zip(
        recorded.totals, recorded.counted, recorded.offsets, row, strict=True
    ):
        if now < counted:
            offset, counted = total - now, now
        added.append(min(now - counted, COUNTER_MAX, TOTAL_MAX - total))
        offsets.append(offset)
    totals = Totals(*(total + more for total, more in zip(recorded.totals, added, strict=True)))
    after = Recorded(recorded.session_id, count_sequence(heartbeats), totals, Totals(*offsets))
    return Count(added[0], added[1], after)


def recorded_from_labels(id: str, sequence: int, totals: Totals, labels: Mapping[str, str]) -> Recorded:
    match = re.fullmatch(r"(-?[0-9]{1,19}),(-?[0-9]{1,19})", labels.get(OFFSETS_LABEL, ""))
    offsets = Totals(int(match[1]), int(match[2])) if match else Totals()
    return Recorded(labels.get(SESSION_LABEL, id), sequence, totals, offsets)


def new_session(recorded: Recorded, id: str, epoch: int) -> Recorded:
    """For a row whose number of heartbeats has been set back, such as by a restore: sequence numbers begin anew."""
    return Recorded(f"{id}#{epoch}", 0, recorded.totals, recorded.offsets)


def new_life(counted: Totals, id: str, epoch: int) -> Recorded:
    """For a worker that liveness has cleaned up: its recorded totals begin at 0."""
    return Recorded(f"{id}#{epoch}", 0, Totals(), Totals(-counted.successes, -counted.errors))
