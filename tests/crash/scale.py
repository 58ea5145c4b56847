"""How much of the crash campaign is run: all of it, or a part for who has less time."""

from __future__ import annotations

import math
import os

VARIABLE = "CRASH_SCALE"
SCALE = float(os.environ.get(VARIABLE, "1"))


def scaled(tries: int) -> int:
    """So many tries at this scale; one at least."""
    return max(1, math.ceil(tries * SCALE))


def seeds(first: int, count: int) -> range:
    """Seeds of so many runs of which each is one try."""
    return range(first, first + scaled(count))
