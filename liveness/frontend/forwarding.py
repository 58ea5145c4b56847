"""One call on its way to a node and back: bytes, deadline, metadata, trailers and details pass through unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, NamedTuple

import grpc
import structlog

from liveness.clock import Clock
from liveness.domain.errors import LivenessError, NoNodeReachable, ShardUnavailable, ShuttingDown
from liveness.frontend import refusals
from liveness.frontend.channels import Channels
from liveness.frontend.patience import Patience
from liveness.frontend.refusals import Metadata, Refusal
from liveness.frontend.routes import Owner, Routes
from liveness.frontend.rules import Repeat
from liveness.statuses import DETAILS_KEY
from liveness.tracing import Traces

logger = structlog.get_logger("liveness.frontend")

TO = "liveness-to"
"""Metadata: the node that a call is meant for. Who receives it serves the call or refuses it."""
ALONE = "liveness-alone"
"""Metadata: the node is asked for its own share only, by one that asks all of them. Who forwards a call for somebody
else does not say so: the node it goes to has to ask the others."""
AT_ONCE_MAX = 4
"""Nodes that know nothing certain may send a call in circles."""

_OF_THE_TRANSPORT = frozenset({TO, ALONE, "user-agent", "content-type", "te", "host", "accept-encoding"})
"""What each gRPC client says for itself, as everything that begins with grpc-."""


class Answer(NamedTuple):
    body: bytes
    initial: Metadata = ()
    trailing: Metadata = ()


def callers_own(metadata: Iterable[tuple[str, str | bytes]] | None) -> Metadata:
    """What a program said, without what gRPC says for it."""
    return tuple(
        (name, value)
        for name, value in metadata or ()
        if name not in _OF_THE_TRANSPORT and not name.startswith(("grpc-", ":"))
    )


def for_the_caller(metadata: Metadata) -> Metadata:
    return tuple(
        (name, value)
        for name, value in metadata
        if name == DETAILS_KEY or (name not in _OF_THE_TRANSPORT and not name.startswith(("grpc-", ":")))
    )


def addressee(metadata: Iterable[tuple[str, str | bytes]] | None) -> str | None:
    for name, value in metadata or ():
        if name == TO:
            return value if isinstance(value, str) else value.decode(errors="replace")
    return None


def is_asked_alone(metadata: Iterable[tuple[str, str | bytes]] | None) -> bool:
    return any(name == ALONE for name, _ in metadata or ())


class Forwarder:
    def __init__(
        self,
        routes: Routes,
        channels: Channels,
        clock: Clock,
        *,
        me: str = "",
        on_trouble: Callable[[], None] = lambda: None,
        traces: Traces | None = None,
    ) -> None:
        """`me`: this node, to which nothing is forwarded. `on_trouble`: a node was not where it should be."""
        self._traces = traces
        self._routes = routes
        self._channels = channels
        self._clock = clock
        self._me = me
        self._on_trouble = on_trouble
        self._turn = 0
        self._streams: set[Any] = set()
        self._ending = False

    def end_streams(self) -> None:
        """We stop; those who read one are told to look elsewhere."""
        self._ending = True
        for call in self._streams:
            call.cancel()

    # -- one try

    async def send(
        self, path: str, body: bytes, owner: Owner, metadata: Metadata, timeout_s: float
    ) -> Answer | Refusal:
        followed = None if self._traces is None else self._traces.sending(path, owner.node_id)
        if followed is None:
            return await self._send(path, body, owner, metadata, timeout_s)
        with followed:
            outcome = await self._send(path, body, owner, followed.carried_by(metadata), timeout_s)
            followed.answered(outcome.code if isinstance(outcome, Refusal) else grpc.StatusCode.OK)
            return outcome

    async def _send(
        self, path: str, body: bytes, owner: Owner, metadata: Metadata, timeout_s: float
    ) -> Answer | Refusal:
        call = self._channels.to(owner.address).unary(path)(
            body, timeout=timeout_s, metadata=(*metadata, (TO, owner.node_id))
        )
        try:
            answer = await call
            return Answer(answer, tuple(await call.initial_metadata()), tuple(await call.trailing_metadata()))
        except grpc.aio.AioRpcError as error:
            return self._noted(refusals.from_call(error, owner), owner)
        except asyncio.CancelledError:
            if _is_cancelled():
                call.cancel()
                raise
            return refusals.lost(owner)  # its channel was closed

    async def stream(
        self, path: str, body: bytes, owner: Owner, metadata: Metadata, timeout_s: float | None
    ) -> AsyncIterator[bytes | Metadata | Refusal]:
        """The initial metadata, the messages, then how it ended: a refusal or the trailing metadata."""
        call = self._channels.to(owner.address).server_stream(path)(
            body, timeout=timeout_s, metadata=(*metadata, (TO, owner.node_id))
        )
        self._streams.add(call)
        try:
            if self._ending:
                raise asyncio.CancelledError
            message = await call.read()
            yield tuple(await call.initial_metadata())
            while message is not grpc.aio.EOF:
                yield message
                message = await call.read()
            yield tuple(await call.trailing_metadata())
        except grpc.aio.AioRpcError as error:
            yield self._noted(refusals.from_call(error, owner), owner)
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            yield refusals.from_error(ShuttingDown()) if self._ending else refusals.lost(owner)
        finally:
            self._streams.discard(call)
            call.cancel()

    def _noted(self, refusal: Refusal, owner: Owner) -> Refusal:
        if refusal.reason == refusals.WRONG_NODE:
            logger.error(
                "two nodes give out one address; set --advertise of each",
                address=owner.address,
                wanted=owner.node_id,
                found=refusal.fields.get("node_id", ""),
            )
        return refusal

    # -- from try to try

    def learn(self, shard_id: int | None, owner: Owner, refusal: Refusal) -> None:
        """Take from a refusal what it says about the way."""
        if (told := refusal.owner) is not None:
            self._routes.learn(*told)
        elif refusal.reason == refusals.LOST:
            if shard_id is not None:
                self._routes.forget(shard_id, owner.node_id)
            self._on_trouble()

    def next_owner(
        self, shard_id: int | None, refused_by: Owner | None, refusal: Refusal | None
    ) -> Owner | None:
        """Whom to try, or None: nobody is known, or only the one who refused."""
        if shard_id is not None:
            owner = self._routes.owner(shard_id)
        elif refusal is not None and (told := refusal.owner) is not None:
            owner = told[1]
        else:
            owner = self._anyone(refused_by)
        if owner is not None and refused_by is not None and owner.node_id == refused_by.node_id:
            return None
        return owner

    def _anyone(self, but: Owner | None) -> Owner | None:
        """Nodes take turns; those about to leave come last."""
        members = [member for member in self._routes.members() if member.node_id != self._me]
        staying = [member for member in members if not member.leaving] or members
        others = [member for member in staying if but is None or member.node_id != but.node_id] or staying
        if not others:
            return None
        self._turn += 1
        chosen = others[self._turn % len(others)]
        return Owner(chosen.node_id, chosen.address, 0)

    def nobody(self, shard_id: int | None) -> LivenessError:
        if shard_id is None or not self._routes.members():
            return NoNodeReachable()
        return ShardUnavailable(shard_id=shard_id)

    async def pursue(
        self,
        shard_id: int | None,
        repeat: Repeat,
        patience: Patience,
        send: Callable[[Owner], Any],
        is_mine: Callable[[int], bool],
    ) -> Answer | Refusal | None:
        """Try until it is served, or refused for good, or the time is over. None: the shard has become this node's.

        `shard_id`: None for a call that any node may serve.
        """
        refusal: Refusal | None = None
        refused_by: Owner | None = None
        at_once = AT_ONCE_MAX
        while True:
            if shard_id is not None and is_mine(shard_id):
                return None
            owner = self.next_owner(shard_id, refused_by, refusal)
            if owner is not None:
                outcome = await send(owner)
                if isinstance(outcome, Answer) or not outcome.may_repeat(repeat):
                    return outcome  # type: ignore[no-any-return]
                refusal, refused_by = outcome, owner
                self.learn(shard_id, owner, outcome)
                at_once -= 1
                if at_once and self.next_owner(shard_id, owner, outcome) is not None:
                    continue
            if not await patience.pause(self._routes):
                return refusal or refusals.from_error(self.nobody(shard_id))
            refused_by, at_once = None, AT_ONCE_MAX


def _is_cancelled() -> bool:
    """Whether somebody cancelled us, or only the call that we wait for, which looks the same."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
