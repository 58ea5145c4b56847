"""When so many workers of a namespace die at once that the cause is hardly with the workers."""

from __future__ import annotations

from liveness.domain.death import COMPANY_MS

WINDOW_MS = COMPANY_MS
"""As with those of whom a death certificate says that they died with the worker."""
DEATHS_MIN = 20
SHARE = 0.3
"""Of the workers that were ACTIVE, those who died since included."""


def is_storm(deaths: int, active: int) -> bool:
    """`deaths`: leases that ended within the window for silence or a broken stream. `active`: workers that are left."""
    return deaths >= DEATHS_MIN and deaths > SHARE * (active + deaths)
