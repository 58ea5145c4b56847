"""The principal: who calls, and what was granted to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from typing import Annotated

import msgspec

from liveness.domain.errors import Unauthenticated
from liveness.security.grants import Grant, Role, parse_grants

AUTHORIZATION_HEADER = "authorization"
MEMO_ENTRIES_MAX = 1_000

JWT_PREFIX = "jwt:"
CERTIFICATE_PREFIX = "cert:"
"""Names that come from elsewhere have a prefix, so that no subject of a foreign issuer is taken for the principal of a
token."""

INVALID_TOKEN = "the token is not valid, or not any more"
"""One sentence for every reason: an attacker must not learn whether a token exists, has expired or was revoked."""

EXPIRED_CERTIFICATE = "the client certificate is not valid any more"

WALL_MS_MAX = 253_402_300_799_999
"""The end of the year 9999, after which no timestamp can be told."""

TOKEN = "token"
SESSION = "session"
JWT = "jwt"
CERTIFICATE = "certificate"


class Principal:
    __slots__ = ("_encoded", "_memo", "credential_id", "credential_kind", "expires_wall_ms", "grants", "name")

    def __init__(
        self,
        name: str,
        grants: Iterable[Grant],
        credential_kind: str = TOKEN,
        credential_id: str = "",
        expires_wall_ms: int = 0,
    ) -> None:
        """`expires_wall_ms`: when the credential expires; 0 if it does not by itself."""
        self.name = name
        self.grants = tuple(grants)
        self.credential_kind = credential_kind
        self.credential_id = credential_id
        self.expires_wall_ms = expires_wall_ms
        self._memo: dict[tuple[frozenset[Role], str], tuple[str, ...]] = {}
        self._encoded = b""

    def __repr__(self) -> str:
        return f"Principal({self.name!r}, {' '.join(map(str, self.grants))!r})"

    def key_prefixes(self, roles: frozenset[Role], namespace: str) -> tuple[str, ...]:
        """The prefixes of the worker keys for which the principal has one of these roles in the namespace. An empty prefix
        stands for all keys; no prefix at all means that it has no such role there."""
        found = self._memo.get((roles, namespace))
        if found is None:
            found = tuple(
                {
                    grant.key_prefix: None
                    for grant in self.grants
                    if grant.covers(namespace) and any(map(grant.includes, roles))
                }
            )
            if "" in found:
                found = ("",)
            if len(self._memo) >= MEMO_ENTRIES_MAX:  # callers choose the namespaces that they name
                self._memo.clear()
            self._memo[roles, namespace] = found
        return found

    def encoded(self) -> bytes:
        """The principal as text, for another node. It is written once: a frontend sends it with every heartbeat."""
        if not self._encoded:
            self._encoded = msgspec.json.encode(
                _Encoded(
                    self.name,
                    " ".join(map(str, self.grants)),
                    self.credential_kind,
                    self.credential_id,
                    self.expires_wall_ms,
                )
            )
        return self._encoded

    def has(self, role: Role, namespace: str) -> bool:
        """Whether the principal has the role in the whole namespace; empty for all namespaces."""
        return "" in self.key_prefixes(frozenset({role}), namespace)

    def has_expired(self, now_wall_ms: int) -> bool:
        return 0 < self.expires_wall_ms <= now_wall_ms

    def has_any_role(self, namespace: str) -> bool:
        return any(grant.covers(namespace) for grant in self.grants)


class Caller:
    """Who made the call that is being served. Calls with the same header share it for a while."""

    __slots__ = ("authorization", "item_principals", "noted_hosts", "principal")

    def __init__(
        self, principal: Principal, authorization: str = "", item_principals: tuple[str, ...] = ()
    ) -> None:
        """`authorization`: the header as it came; empty if the call was forwarded. `item_principals`: names of the principals
        of a batch's items, if a node or frontend put heartbeats of several callers together."""
        self.principal = principal
        self.authorization = authorization
        self.item_principals = item_principals
        self.noted_hosts: set[str] = set()
        """Hosts whose use of the credential was counted in this hour."""


def invalid_credential(principal: Principal) -> Unauthenticated:
    """The error for a principal whose credential is not valid any more."""
    is_certificate = principal.credential_kind == CERTIFICATE
    return Unauthenticated(why=EXPIRED_CERTIFICATE if is_certificate else INVALID_TOKEN)


current_caller: ContextVar[Caller | None] = ContextVar("current_caller", default=None)
"""None if callers are not asked who they are."""


caller_address: ContextVar[str] = ContextVar("caller_address", default="")
"""From where the call that is being served came to the cluster; only for calls that are audited."""


def caller_name() -> str:
    """The name of the principal that calls; empty if callers are not asked."""
    caller = current_caller.get()
    return "" if caller is None else caller.principal.name


def item_principals(count: int) -> Sequence[str]:
    """The name of the principal of each of a batch's items."""
    caller = current_caller.get()
    if caller is None:
        return [""] * count
    if not caller.item_principals:
        return [caller.principal.name] * count
    if len(caller.item_principals) != count:
        raise Unauthenticated
    return caller.item_principals


class _Encoded(msgspec.Struct):
    name: str
    grants: str
    kind: str
    id: str
    expires_wall_ms: Annotated[int, msgspec.Meta(ge=0, le=WALL_MS_MAX)]


def decode_principal(text: str) -> Principal:
    """Raises ValueError or msgspec.MsgspecError."""
    encoded = msgspec.json.decode(text, type=_Encoded)
    return Principal(
        encoded.name, parse_grants(encoded.grants), encoded.kind, encoded.id, encoded.expires_wall_ms
    )
