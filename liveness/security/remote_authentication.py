"""Who calls, for a frontend: it asks a node, which has the tokens and the keys, and remembers the answer for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from liveness.clock import Clock
from liveness.domain.errors import LivenessError, Unauthenticated
from liveness.security.authentication import CallContext, CallerRegistry, authorization_of
from liveness.security.grants import parse_grants
from liveness.security.principal import Caller, Principal
from liveness.v1.cluster_pb2 import AuthenticateResponse

REMEMBERED_MS = 500
"""Together with the half second after which a node knows, a token that was revoked is refused within a second."""

AskNode = Callable[[str], Awaitable[AuthenticateResponse]]
"""Asks a node about an authorization header. Raises `Unauthenticated`, or another error if no node answers."""


class _Question(NamedTuple):
    """About a header, while a node is asked."""

    answer: asyncio.Future[Caller]
    asked_wall_ms: int


class RemoteAuthenticator(CallerRegistry):
    def __init__(self, clock: Clock, ask_node: AskNode) -> None:
        super().__init__(clock)
        self._ask_node = ask_node
        self._questions: dict[str, _Question] = {}

    async def authenticate(self, context: CallContext) -> Caller:
        header = authorization_of(context.invocation_metadata())
        if header is None:
            raise Unauthenticated
        return await self._authenticate_once(header)

    async def _authenticate_once(self, header: str) -> Caller:
        """Calls that come while a node is asked about the same header share the answer: a busy client has hundreds of calls
        under way when its header is forgotten."""
        now_ms = self._clock.wall_ms()
        question = self._questions.get(header)
        if question is None or not 0 <= now_ms - question.asked_wall_ms < REMEMBERED_MS:
            answer = asyncio.ensure_future(self._authenticate_header(header))
            question = self._questions[header] = _Question(answer, now_ms)
            answer.add_done_callback(lambda _: self._forget_question(header, answer))
        # A caller that hangs up does not end the question of the others.
        return await asyncio.shield(question.answer)

    def _forget_question(self, header: str, answer: asyncio.Future[Caller]) -> None:
        question = self._questions.get(header)
        if question is not None and question.answer is answer:
            del self._questions[header]
        if not answer.cancelled():
            answer.exception()  # it is nobody's concern if all callers have hung up

    async def _authenticate_header(self, header: str) -> Caller:
        asked_wall_ms = self._clock.wall_ms()
        answer = await self._ask_node(header)
        principal = Principal(
            answer.principal,
            parse_grants(" ".join(answer.grants)),
            answer.credential,
            answer.credential_id,
            answer.expires_wall_ms,
        )
        caller = Caller(principal, header)
        # From the question on: the node may have answered long before the answer arrived.
        self.remember(header, caller, asked_wall_ms + REMEMBERED_MS)
        return caller

    async def run(self) -> None:
        """End streams whose caller's credential is not valid any more."""
        while True:
            await self._clock.sleep(REMEMBERED_MS)
            by_header = {stream.caller.authorization: stream for stream in self.open_streams()}
            for header in by_header:
                try:
                    await self._authenticate_header(header)
                except Unauthenticated:
                    self._revoke(header)
                except LivenessError:
                    pass  # no node can be asked; streams stay as they are until one can

    def _revoke(self, header: str) -> None:
        for stream in self.open_streams():
            if stream.caller.authorization == header and not stream.revoked.done():
                stream.revoked.set_result(None)
