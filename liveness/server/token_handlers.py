"""Tokens: create, list and revoke; and who a caller is, and what it may do."""

from __future__ import annotations

import structlog

from liveness.clock import Clock
from liveness.domain.errors import InvalidField, TokenNotFound, TokenQuotaExceeded
from liveness.security.grants import EXPECTED, GRANTABLE_ROLES, Grant, Role, parse_grant
from liveness.security.principal import caller_name, current_caller
from liveness.security.token_table import TokenStore, TokenTable
from liveness.security.tokens import (
    DAY_MS,
    GRANTS_MAX,
    LIFETIME_MS_DEFAULT,
    LIFETIME_MS_MAX,
    PRINCIPAL_RULE,
    create_token,
    grants_text,
    is_principal_name,
    new_stamp,
)
from liveness.server.validation import duration_ms, require_identifier
from liveness.server.wire import timestamp
from liveness.store.tokens import TokenRow, TooManyTokens
from liveness.v1 import token_pb2 as pb

logger = structlog.get_logger("liveness.security")


class TokenHandlers:
    def __init__(self, store: TokenStore, table: TokenTable, clock: Clock) -> None:
        self._store = store
        self._table = table
        self._clock = clock

    async def create(self, request: pb.CreateTokenRequest) -> pb.CreateTokenResponse:
        if not is_principal_name(request.principal):
            raise InvalidField(field="principal", rule=PRINCIPAL_RULE)
        grants = _parse_grants(list(request.grants))
        lifetime_ms = LIFETIME_MS_DEFAULT
        if request.HasField("lifetime"):
            lifetime_ms = duration_ms("lifetime", request.lifetime)
            if lifetime_ms > LIFETIME_MS_MAX:
                raise InvalidField(field="lifetime", rule=f"must be at most {LIFETIME_MS_MAX // DAY_MS} days")
        token = create_token()
        now_ms = self._clock.wall_ms()
        row = TokenRow(
            token_id=token.token_id,
            principal=request.principal,
            secret_hash=token.secret_hash,
            grants=grants_text(grants),
            created_wall_ms=now_ms,
            expires_wall_ms=now_ms + lifetime_ms,
            revoked_wall_ms=None,
            created_by=caller_name(),
        )
        try:
            await self._store.insert_token(row, new_stamp())
        except TooManyTokens as error:
            raise TokenQuotaExceeded(principal=request.principal, limit=error.limit) from error
        logger.info("token created", token_id=row.token_id, principal=row.principal, by=row.created_by)
        await self._table.refresh()
        return pb.CreateTokenResponse(token=_message(row), secret=token.text)

    async def list(self, request: pb.ListTokensRequest) -> pb.ListTokensResponse:
        _, rows = await self._store.read_tokens()
        wanted = [row for row in rows if request.principal in ("", row.principal) and not row.parent_id]
        return pb.ListTokensResponse(tokens=map(_message, wanted))

    async def revoke(self, request: pb.RevokeTokenRequest) -> pb.RevokeTokenResponse:
        token_id = require_identifier("token_id", request.token_id)
        row = await self._store.revoke_token(token_id, self._clock.wall_ms(), new_stamp())
        if row is None:
            raise TokenNotFound(token_id=token_id)
        logger.info("token revoked", token_id=row.token_id, principal=row.principal, by=caller_name())
        await self._table.refresh()
        return pb.RevokeTokenResponse(token=_message(row))

    async def who_am_i(self, request: pb.WhoAmIRequest) -> pb.WhoAmIResponse:
        caller = current_caller.get()
        if caller is None:
            return pb.WhoAmIResponse(authenticated=False)
        principal = caller.principal
        response = pb.WhoAmIResponse(
            authenticated=True,
            principal=principal.name,
            grants=map(str, principal.grants),
            credential=principal.credential_kind,
            credential_id=principal.credential_id,
        )
        if principal.expires_wall_ms:
            response.expire_time.CopyFrom(timestamp(principal.expires_wall_ms))
        return response

    async def can_i(self, request: pb.CanIRequest) -> pb.CanIResponse:
        if int(request.role) not in tuple(map(int, GRANTABLE_ROLES)):
            raise InvalidField(field="role", rule="must be WORKER, PRODUCER, READER, OPERATOR or ADMIN")
        caller = current_caller.get()
        if caller is None:
            return pb.CanIResponse(allowed=True)
        namespace = request.target_namespace.removeprefix("*")
        prefixes = caller.principal.key_prefixes(frozenset({Role(request.role)}), namespace)
        key = request.worker_instance_key
        return pb.CanIResponse(allowed="" in prefixes or (bool(key) and key.startswith(prefixes)))


def _parse_grants(texts: list[str]) -> tuple[Grant, ...]:
    if not 1 <= len(texts) <= GRANTS_MAX:
        raise InvalidField(field="grants", rule=f"must be 1 to {GRANTS_MAX}")
    grants = [parse_grant(text) for text in texts]
    if None in grants:
        raise InvalidField(field="grants", rule=f"must be {EXPECTED}")
    return tuple(dict.fromkeys(grant for grant in grants if grant is not None))


def _message(row: TokenRow) -> pb.Token:
    message = pb.Token(
        token_id=row.token_id,
        principal=row.principal,
        grants=row.grants.split(),
        create_time=timestamp(row.created_wall_ms),
        expire_time=timestamp(row.expires_wall_ms),
        created_by=row.created_by,
    )
    if row.revoked_wall_ms is not None:
        message.revoke_time.CopyFrom(timestamp(row.revoked_wall_ms))
    return message
