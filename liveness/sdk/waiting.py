"""How a client waits for the answer of a call: `Client` on the event loop, `BlockingClient` in the thread that calls."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def result_of(future: Future[T]) -> T:
    return await asyncio.wrap_future(future)


def result_of_blocking(future: Future[T]) -> T:
    return future.result()
