"""Who made a forwarded call. The node or frontend where the caller arrived has verified its credential, and names the
principal on the cluster's port; the credential itself goes no further."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec

from liveness.domain.errors import Unauthenticated
from liveness.security.authentication import CACHE_ENTRIES_MAX, CallContext, CallerRegistry, Metadata
from liveness.security.principal import Caller, Principal, current_caller, decode_principal

PRINCIPAL_HEADER = "liveness-principal-bin"
"""The principal of all that the call contains."""
ITEM_PRINCIPALS_HEADER = "liveness-item-principals-bin"
"""The principals of the items of a batch that carries the heartbeats of several callers."""


class _ItemPrincipals(msgspec.Struct, array_like=True):
    principals: list[str]
    positions: list[int]
    """For each item of the batch, the position of its principal in `principals`."""


def principal_metadata() -> tuple[tuple[str, bytes], ...]:
    """What a call to another node says about the caller of the call that is being served."""
    encoded = encoded_principal()
    return ((PRINCIPAL_HEADER, encoded),) if encoded else ()


def encoded_principal() -> bytes:
    """Empty if callers are not asked who they are."""
    caller = current_caller.get()
    return b"" if caller is None else caller.principal.encoded()


def item_metadata(principals: Sequence[bytes]) -> tuple[tuple[str, bytes], ...]:
    """The same for a batch. `principals`: one for each item, as `encoded_principal` returned it for its caller."""
    distinct = {principal: position for position, principal in enumerate(dict.fromkeys(principals))}
    if len(distinct) == 1:
        return ((PRINCIPAL_HEADER, principals[0]),) if principals[0] else ()
    message = _ItemPrincipals(
        [principal.decode() for principal in distinct], [distinct[principal] for principal in principals]
    )
    return ((ITEM_PRINCIPALS_HEADER, msgspec.msgpack.encode(message)),)


class ForwardedCallers(CallerRegistry):
    """Reads who made a forwarded call from the metadata that its sender, a node or a frontend, has set."""

    def known(self, metadata: Metadata | None) -> Caller | None:
        encoded = _header(metadata, PRINCIPAL_HEADER)
        return None if encoded is None else _caller(encoded)

    def known_of_batch(self, metadata: Metadata | None) -> Caller | None:
        """Only a batch of heartbeats has several callers: nobody else may act with the grants of all of them."""
        if (caller := self.known(metadata)) is not None:
            return caller
        if (encoded := _header(metadata, ITEM_PRINCIPALS_HEADER)) is not None:
            return _batch_caller(encoded)
        return None

    async def authenticate(self, context: CallContext) -> Caller:
        raise Unauthenticated


@lru_cache(maxsize=CACHE_ENTRIES_MAX)
def _caller(encoded: bytes) -> Caller:
    try:
        return Caller(decode_principal(encoded.decode()))
    except (ValueError, msgspec.MsgspecError):
        raise Unauthenticated from None


def _batch_caller(encoded: bytes) -> Caller:
    """Its principal has the grants of all: each sender was asked for its own where it arrived."""
    try:
        message = msgspec.msgpack.decode(encoded, type=_ItemPrincipals)
        sender, names = _sender(tuple(message.principals))
        items = tuple(names[position] for position in message.positions)
    except (ValueError, IndexError, msgspec.MsgspecError):
        raise Unauthenticated from None
    return Caller(sender, item_principals=items)


@lru_cache(maxsize=1_000)
def _sender(encoded: tuple[str, ...]) -> tuple[Principal, tuple[str, ...]]:
    """The principal with the grants of all, and the name of each. A frontend names the same ones again and again."""
    principals = [_caller(principal.encode()).principal for principal in encoded]
    grants = {grant: None for principal in principals for grant in principal.grants}
    return Principal("", grants), tuple(principal.name for principal in principals)


def _header(metadata: Metadata | None, name: str) -> bytes | None:
    entries: Iterable[tuple[str, str | bytes]] = metadata or ()
    return next((value for key, value in entries if key == name and isinstance(value, bytes)), None)
