"""Opaque tokens that carry a place in a listing and remember which listing it was."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b
from typing import TypeVar

import msgspec

from liveness.domain.errors import InvalidRequest

T = TypeVar("T")


class _Token(msgspec.Struct, array_like=True):
    listing: bytes
    place: msgspec.Raw


def issue(place: object, *listing: object) -> str:
    """`listing`: everything that makes the listing what it is."""
    token = _Token(_digest(listing), msgspec.Raw(msgspec.json.encode(place)))
    return urlsafe_b64encode(msgspec.json.encode(token)).decode()


def redeem(token: str, kind: type[T], error: type[InvalidRequest], *listing: object) -> T:
    try:
        parsed = msgspec.json.decode(urlsafe_b64decode(token.encode()), type=_Token)
        place = msgspec.json.decode(parsed.place, type=kind)
    except (ValueError, msgspec.MsgspecError) as cause:
        raise error() from cause
    if parsed.listing != _digest(listing):
        raise error()
    return place


def _digest(listing: tuple[object, ...]) -> bytes:
    return blake2b(msgspec.json.encode(listing), digest_size=9).digest()
