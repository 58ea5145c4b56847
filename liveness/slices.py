"""Long work in slices: between two of them the event loop serves others.

A slice ends after a number of items or an estimated cost rather than after a time, so that simulated worlds repeat exactly.
Whatever was read before the end of a slice may have changed by the beginning of the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Protocol, TypeVar


class _Sized(Protocol):
    def ByteSize(self) -> int: ...  # noqa: N802  # protobuf's name


ItemT = TypeVar("ItemT")
MessageT = TypeVar("MessageT", bound=_Sized)

SLICE_US = 10_000
"""The estimated processor time of a slice, in microseconds."""
MESSAGE_US = 20
MESSAGE_BYTES_PER_US = 10
"""The estimated processor time to build a message: so much for each, and for its bytes."""


async def end_slice() -> None:
    """Let everything else run that is ready."""
    await asyncio.sleep(0)


async def in_slices(items: Iterable[ItemT], per_slice: int) -> AsyncIterator[ItemT]:
    """Yield the items, with a break after every `per_slice` of them."""
    for index, item in enumerate(items):
        if index and index % per_slice == 0:
            await end_slice()
        yield item


async def build_in_slices(items: Iterable[ItemT], build: Callable[[ItemT], MessageT]) -> list[MessageT]:
    """Build a message of each item, with a break whenever those since the last one have taken long, by their size."""
    messages: list[MessageT] = []
    slice_us = 0
    for item in items:
        if slice_us > SLICE_US:
            slice_us = 0
            await end_slice()
        message = build(item)
        messages.append(message)
        slice_us += MESSAGE_US + message.ByteSize() // MESSAGE_BYTES_PER_US
    return messages
