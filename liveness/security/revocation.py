"""Ends streams and long polls when the credential of their caller is revoked or expires."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Protocol

from liveness.security.authentication import OpenStream
from liveness.security.principal import Caller, invalid_credential


class StreamRegistry(Protocol):
    """Knows what is open, and sets `revoked` of a stream when the credential of its caller is not valid any more."""

    def open_stream(self, caller: Caller) -> OpenStream: ...

    def close_stream(self, stream: OpenStream) -> None: ...


async def unless_revoked(registry: StreamRegistry, serving: Coroutine[Any, Any, Any], caller: Caller) -> Any:
    """Return the answer of a call that may wait long, or end the call together with the caller's credential."""
    stream = registry.open_stream(caller)
    answer = asyncio.ensure_future(serving)
    try:
        await asyncio.wait({answer, stream.revoked}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise invalid_credential(caller.principal)
        return answer.result()
    finally:
        registry.close_stream(stream)
        answer.cancel()
        await asyncio.gather(answer, return_exceptions=True)


async def until_revoked(
    registry: StreamRegistry, messages: AsyncIterator[Any], caller: Caller
) -> AsyncIterator[Any]:
    """The messages until the caller's credential is not valid any more."""
    stream = registry.open_stream(caller)
    iterator = aiter(messages)
    waiting: asyncio.Future[Any] | None = None
    try:
        while True:
            waiting = asyncio.ensure_future(anext(iterator))
            await asyncio.wait({waiting, stream.revoked}, return_when=asyncio.FIRST_COMPLETED)
            # Also if there is a message: a busy stream always has one.
            if stream.revoked.done():
                raise invalid_credential(caller.principal)
            try:
                yield waiting.result()
            except StopAsyncIteration:
                return
    finally:
        registry.close_stream(stream)
        if waiting is not None:
            waiting.cancel()
            # Also if it was done: how a stream ended whose caller hung up at the same time is nobody's concern.
            await asyncio.gather(waiting, return_exceptions=True)
        if (close := getattr(iterator, "aclose", None)) is not None:
            await close()
