"""Opaque page tokens: a position in a listing, with a digest that identifies the listing."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b
from typing import Annotated, TypeVar

import msgspec

from liveness.domain.errors import InvalidRequest
from liveness.domain.keys import IDENTIFIER_BYTES_MAX

T = TypeVar("T")

# Clients can forge tokens, so their content is validated like any other input.
Sequence = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Key = Annotated[str, msgspec.Meta(max_length=IDENTIFIER_BYTES_MAX, pattern=r"^[^\x00]+$")]


class _Token(msgspec.Struct, array_like=True):
    listing: bytes
    position: msgspec.Raw


def issue(position: object, *listing: object) -> str:
    """`listing`: all parameters that identify the listing."""
    token = _Token(_digest(listing), msgspec.Raw(msgspec.json.encode(position)))
    return urlsafe_b64encode(msgspec.json.encode(token)).decode()


def redeem(token: str, kind: type[T], error: type[InvalidRequest], *listing: object) -> T:
    """`kind`: the type of the position, built from `Sequence` and `Key`."""
    try:
        parsed = msgspec.json.decode(urlsafe_b64decode(token.encode()), type=_Token)
        position = msgspec.json.decode(parsed.position, type=kind)
    except (ValueError, RecursionError, msgspec.MsgspecError) as cause:
        raise error() from cause
    if parsed.listing != _digest(listing):
        raise error()
    return position


def _digest(listing: tuple[object, ...]) -> bytes:
    return blake2b(msgspec.json.encode(listing), digest_size=9).digest()
