"""Silences that ended well: how long nothing was heard of workers that then went on.

Deaths have certificates; this is the other half of what is known about leases. How short a lease could be is decided by the
longest times for which workers that lived were not heard, and those are nowhere in the log: renewals are folded into
checkpoints. So silences of more than half a lease are counted, by their length.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from itertools import islice
from typing import NamedTuple

from liveness.domain.policy import DAY_MS

STEPS_PER_DOUBLING = 16
"""Lengths are counted in steps of 6 % or less."""
KEYS_MAX = 1_000
"""How many different silences a shard counts between two checkpoints. A fleet has a few dozen; a storm that many workers
survive has as many as workers."""

WATCHED_NAMESPACES_MAX = 100
"""Of how many namespaces a shard writes for how long their workers lived. Each is a row per checkpoint; of others nothing is known."""


class SilenceKind(IntEnum):
    HEARTBEATS = 1
    """Between two heartbeats; its terms are the lease."""
    STREAM = 2
    """Between a broken stream and the sign of life that followed; its terms are the disconnect grace."""
    WATCHED = 3
    """No silence: so many seconds did ACTIVE workers live under a server that counts silences, added up. Without it, nobody could tell that
    no worker was ever silent from that nobody counted."""


class Silence(NamedTuple):
    kind: SilenceKind
    wall_ms: int
    """When it ended. Of one that was shorter than its terms, the day is enough: its time of day decides nothing."""
    terms_ms: int
    """How long a silence the lease or the grace allowed."""
    silence_ms: int
    """Rounded up to a step, but not up to the terms. Exact if it was longer than those: a storm or a take-over saved the worker."""


def is_notable(silence_ms: int, terms_ms: int) -> bool:
    return 2 * silence_ms > terms_ms


def rounded_silence(kind: SilenceKind, wall_ms: int, terms_ms: int, silence_ms: int) -> Silence:
    if silence_ms >= terms_ms:
        return Silence(kind, wall_ms // 1_000 * 1_000, terms_ms, silence_ms)
    step = max(1, (1 << max(0, silence_ms.bit_length() - 1)) // STEPS_PER_DOUBLING)
    rounded_ms = min(-(-silence_ms // step) * step, terms_ms - 1)
    return Silence(kind, wall_ms // DAY_MS * DAY_MS, terms_ms, rounded_ms)


class CountedSilence(NamedTuple):
    silence: Silence
    times: int


class SilenceCounts:
    """What a shard counted since its last checkpoint."""

    __slots__ = ("_since_ms", "counts")

    def __init__(self, since_ms: int) -> None:
        """`since_ms`: on the observed clock."""
        self._since_ms = since_ms
        self.counts: dict[tuple[str, Silence], int] = {}

    def record(self, namespace: str, kind: SilenceKind, wall_ms: int, terms_ms: int, silence_ms: int) -> None:
        """Count a silence, if it was long."""
        if is_notable(silence_ms, terms_ms):
            counts, key = self.counts, (namespace, rounded_silence(kind, wall_ms, terms_ms, silence_ms))
            if key in counts:
                counts[key] += 1
            elif len(counts) < KEYS_MAX:
                counts[key] = 1

    def take(
        self, active: Iterable[tuple[str, int]], now_ms: int, wall_ms: int
    ) -> dict[tuple[str, Silence], int]:
        """Return the counts, and begin anew. `active`: how many workers each namespace has."""
        counts, self.counts = self.counts, {}
        watched_s = (now_ms - self._since_ms) // 1_000
        self._since_ms += watched_s * 1_000
        for namespace, workers in islice(active, WATCHED_NAMESPACES_MAX):
            if workers and watched_s:
                watched = Silence(SilenceKind.WATCHED, wall_ms // DAY_MS * DAY_MS, 1, 1)
                counts[namespace, watched] = workers * watched_s
        return counts
