"""Long work in slices: between two of them the event loop serves others.

A slice ends after a number of items or an estimated cost rather than after a time, so that simulated worlds repeat exactly.
Whatever was read before the end of a slice may have changed by the beginning of the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

ItemT = TypeVar("ItemT")

SLICE_US = 10_000
"""The estimated processor time of a slice, in microseconds."""


async def end_slice() -> None:
    """Let everything else run that is ready."""
    await asyncio.sleep(0)


async def in_slices(items: Iterable[ItemT], per_slice: int) -> AsyncIterator[ItemT]:
    """Yield the items, with a break after every `per_slice` of them."""
    for index, item in enumerate(items):
        if index and index % per_slice == 0:
            await end_slice()
        yield item
