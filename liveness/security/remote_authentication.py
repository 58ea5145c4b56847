"""Who calls, for a frontend: it asks a node, which has the tokens and the keys, and remembers the answer for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from liveness.clock import Clock
from liveness.domain.errors import LivenessError, Unauthenticated
from liveness.security.authentication import (
    CACHE_ENTRIES_MAX,
    CallContext,
    CallerRegistry,
    ClientCertificate,
    authorization_of,
)
from liveness.security.grants import parse_grants
from liveness.security.http_callers import HttpCallers
from liveness.security.principal import Caller, Principal
from liveness.v1.cluster_pb2 import AuthenticateRequest, AuthenticateResponse

REMEMBERED_MS = 500
"""Together with the half second after which a node knows, a token that was revoked is refused within a second."""

QUESTIONS_MAX = 50
"""So many credentials of open streams are asked about at once, so that thousands are asked about within a second."""

AskNode = Callable[[AuthenticateRequest], Awaitable[AuthenticateResponse]]
"""Asks a node about a credential. Raises `Unauthenticated`, or another error if no node answers."""


class _Question(NamedTuple):
    """About a header, while a node is asked."""

    answer: asyncio.Future[Caller]
    asked_wall_ms: int


class RemoteAuthenticator(CallerRegistry):
    def __init__(self, clock: Clock, ask_node: AskNode, http_callers: HttpCallers | None = None) -> None:
        super().__init__(clock, http_callers)
        self._ask_node = ask_node
        self._questions: dict[str, _Question] = {}
        self._by_certificate: dict[ClientCertificate, tuple[Caller, int]] = {}
        """Who a certificate belongs to, and until when that is remembered."""

    async def authenticate(self, context: CallContext) -> Caller:
        header = authorization_of(context.invocation_metadata())
        if header is not None:
            return await self._authenticate_once(header)
        return await self._authenticate_certificate(self.certificate_of(context))

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
        caller = Caller(await self._ask(AuthenticateRequest(authorization=header)), header)
        # From the question on: the node may have answered long before the answer arrived.
        self.remember(header, caller, asked_wall_ms + REMEMBERED_MS)
        return caller

    async def _authenticate_certificate(self, certificate: ClientCertificate) -> Caller:
        asked_wall_ms = self._clock.wall_ms()
        known = self._by_certificate.get(certificate)
        if known is not None and asked_wall_ms < known[1]:
            return known[0]
        named = await self._ask(AuthenticateRequest(certificate=certificate.name))
        # The node knows what the name grants; when the certificate expires is known here only.
        caller = Caller(
            Principal(
                named.name,
                named.grants,
                named.credential_kind,
                named.credential_id,
                certificate.expires_wall_ms,
            )
        )
        if len(self._by_certificate) >= CACHE_ENTRIES_MAX:
            self._by_certificate.clear()
        self._by_certificate[certificate] = caller, asked_wall_ms + REMEMBERED_MS
        return caller

    async def _ask(self, request: AuthenticateRequest) -> Principal:
        answer = await self._ask_node(request)
        return Principal(
            answer.principal,
            parse_grants(" ".join(answer.grants)),
            answer.credential,
            answer.credential_id,
            answer.expires_wall_ms,
        )

    async def run(self) -> None:
        """End streams whose caller's credential is not valid any more."""
        while True:
            await self._clock.sleep(REMEMBERED_MS)
            # A caller with a certificate has no header; no node needs to be asked whether it has expired.
            now_ms = self._clock.wall_ms()
            self.end_streams(
                lambda caller: not caller.authorization and caller.principal.has_expired(now_ms)  # noqa: B023  # called at once
            )
            headers = {stream.caller.authorization for stream in self.open_streams()} - {""}
            questions = asyncio.Semaphore(QUESTIONS_MAX)
            await asyncio.gather(*(self._recheck(header, questions) for header in headers))

    async def _recheck(self, header: str, questions: asyncio.Semaphore) -> None:
        async with questions:
            try:
                await self._authenticate_header(header)
            except Unauthenticated:
                self.end_streams(lambda caller: caller.authorization == header)
            except LivenessError:
                # No node can be asked. Streams stay as they are until one can, or until their credential expires.
                now_ms = self._clock.wall_ms()
                self.end_streams(
                    lambda caller: caller.authorization == header and caller.principal.has_expired(now_ms)
                )
