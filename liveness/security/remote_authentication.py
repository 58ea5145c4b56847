"""Who calls, for a frontend: it asks a node, which has the tokens and the keys, and remembers the answer for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from liveness.clock import Clock
from liveness.domain.errors import LivenessError, Unauthenticated
from liveness.security.authentication import CallContext, CallerRegistry, authorization_of
from liveness.security.grants import parse_grants
from liveness.security.principal import Caller, Principal
from liveness.v1.cluster_pb2 import AuthenticateResponse

REMEMBERED_MS = 500
"""Together with the half second after which a node knows, a token that was revoked is refused within a second."""

QUESTIONS_MAX = 50
"""So many credentials of open streams are asked about at once, so that thousands are asked about within a second."""

AskNode = Callable[[str], Awaitable[AuthenticateResponse]]
"""Asks a node about an authorization header. Raises `Unauthenticated`, or another error if no node answers."""


class RemoteAuthenticator(CallerRegistry):
    def __init__(self, clock: Clock, ask_node: AskNode) -> None:
        super().__init__(clock)
        self._ask_node = ask_node

    async def authenticate(self, context: CallContext) -> Caller:
        header = authorization_of(context.invocation_metadata())
        if header is None:
            raise Unauthenticated
        return await self._authenticate_header(header)

    async def _authenticate_header(self, header: str) -> Caller:
        answer = await self._ask_node(header)
        principal = Principal(
            answer.principal,
            parse_grants(" ".join(answer.grants)),
            answer.credential,
            answer.credential_id,
            answer.expires_wall_ms,
        )
        caller = Caller(principal, header)
        self.remember(header, caller, self._clock.wall_ms() + REMEMBERED_MS)
        return caller

    async def run(self) -> None:
        """End streams whose caller's credential is not valid any more."""
        while True:
            await self._clock.sleep(REMEMBERED_MS)
            headers = {stream.caller.authorization for stream in self.open_streams()}
            questions = asyncio.Semaphore(QUESTIONS_MAX)
            await asyncio.gather(*(self._recheck(header, questions) for header in headers))

    async def _recheck(self, header: str, questions: asyncio.Semaphore) -> None:
        async with questions:
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
