"""The scale of a crash run: all tries, or a fraction of them."""

from __future__ import annotations

import math
import os

VARIABLE = "CRASH_SCALE"
SCALE = float(os.environ.get(VARIABLE, "1"))


def scaled(tries: int) -> int:
    """Return the number of tries at this scale, at least one."""
    return max(1, math.ceil(tries * SCALE))


def seeds(first: int, count: int) -> range:
    """Return the seeds for `count` runs at this scale; each run is one try."""
    return range(first, first + scaled(count))
