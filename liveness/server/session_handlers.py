"""Sessions of people who signed in to the dashboard with a token: create one, and end one or all of a principal."""

from __future__ import annotations

import structlog

from liveness.clock import Clock
from liveness.domain.errors import SessionNeedsToken, Unauthenticated
from liveness.security.principal import INVALID_TOKEN, SESSION, TOKEN, current_caller
from liveness.security.token_table import TokenStore, TokenTable
from liveness.security.tokens import SESSION_MS, create_session, grants_text, new_stamp
from liveness.server.wire import timestamp
from liveness.store.tokens import TokenRow
from liveness.v1 import token_pb2 as pb

logger = structlog.get_logger("liveness.security")


class SessionHandlers:
    def __init__(self, store: TokenStore, table: TokenTable, clock: Clock) -> None:
        self._store = store
        self._table = table
        self._clock = clock

    async def create(self, request: pb.CreateSessionRequest) -> pb.CreateSessionResponse:
        caller = current_caller.get()
        # A session that could create another one would never end.
        if caller is None or caller.principal.credential_kind != TOKEN:
            raise SessionNeedsToken
        parent = caller.principal
        now_ms = self._clock.wall_ms()
        if parent.expires_wall_ms <= now_ms:
            # It was valid when the call arrived, here or at the node that forwarded it.
            raise Unauthenticated(why=INVALID_TOKEN)
        session = create_session(parent.credential_id)
        row = TokenRow(
            token_id=session.token_id,
            principal=parent.name,
            secret_hash=session.secret_hash,
            grants=grants_text(parent.grants),
            created_wall_ms=now_ms,
            expires_wall_ms=min(now_ms + SESSION_MS, parent.expires_wall_ms),
            revoked_wall_ms=None,
            created_by=parent.name,
        )
        await self._store.insert_session(row, new_stamp())
        logger.info("session created", session=row.token_id, principal=row.principal)
        await self._table.refresh()
        return pb.CreateSessionResponse(
            secret=session.text, principal=row.principal, expire_time=timestamp(row.expires_wall_ms)
        )

    async def end(self, request: pb.EndSessionRequest) -> pb.EndSessionResponse:
        caller = current_caller.get()
        if caller is None:
            return pb.EndSessionResponse()
        principal = caller.principal
        if request.everywhere:
            ended = await self._store.end_sessions(principal.name, "")
        elif principal.credential_kind == SESSION:
            ended = await self._store.end_sessions(principal.name, principal.credential_id)
        else:
            ended = 0
        if ended:
            logger.info("sessions ended", principal=principal.name, sessions=ended)
            await self._table.refresh()
        return pb.EndSessionResponse(ended=ended)
