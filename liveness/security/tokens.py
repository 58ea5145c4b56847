"""Tokens: lvt_<id>_<secret>. The id is public; of the secret, only a hash is kept.

A browser's session is a token of its own, lvs_<id of the token it was created with>-<id>_<secret>.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import NamedTuple

from liveness.security.grants import Grant
from liveness.security.principal import CERTIFICATE_PREFIX, JWT_PREFIX
from liveness.store.tokens import SESSION_MARK

PREFIX = "lvt_"
SESSION_PREFIX = "lvs_"
ID_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
ID_CHARS = 12
SECRET_BYTES = 32
DAY_MS = 86_400_000
LIFETIME_MS_DEFAULT = 90 * DAY_MS
LIFETIME_MS_MAX = 366 * DAY_MS
SESSION_MS = 12 * 3_600_000
PRINCIPAL_CHARS_MAX = 200
GRANTS_MAX = 100

_FORMAT = re.compile(rf"{PREFIX}([a-z0-9]{{{ID_CHARS},40}})_([A-Za-z0-9_-]{{43}})")
_SESSION_FORMAT = re.compile(
    rf"{SESSION_PREFIX}([a-z0-9]{{{ID_CHARS},40}}{SESSION_MARK}[a-z0-9]{{{ID_CHARS}}})_([A-Za-z0-9_-]{{43}})"
)
_PRINCIPAL = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._:@/-]{{0,{PRINCIPAL_CHARS_MAX - 1}}}")
PRINCIPAL_RULE = (
    f"must be 1 to {PRINCIPAL_CHARS_MAX} letters, digits and . _ : @ / -, and must not begin with "
    f"{JWT_PREFIX} or {CERTIFICATE_PREFIX}"
)


class NewToken(NamedTuple):
    token_id: str
    secret_hash: str
    text: str
    """The whole token. It is shown once, and neither stored nor logged."""


def create_token() -> NewToken:
    return _with_secret(PREFIX, _new_id())


def create_session(parent_id: str) -> NewToken:
    """A session's id names the token that it was created with, and ends with."""
    return _with_secret(SESSION_PREFIX, f"{parent_id}{SESSION_MARK}{_new_id()}")


def _new_id() -> str:
    return "".join(secrets.choice(ID_ALPHABET) for _ in range(ID_CHARS))


def _with_secret(prefix: str, token_id: str) -> NewToken:
    secret = secrets.token_urlsafe(SECRET_BYTES)
    return NewToken(token_id, hash_secret(secret), f"{prefix}{token_id}_{secret}")


def split_token(text: str) -> tuple[str, str] | None:
    """The id and the secret of a token or of a session; None if it is neither."""
    match = _FORMAT.fullmatch(text) or _SESSION_FORMAT.fullmatch(text)
    return None if match is None else (match[1], match[2])


def hash_secret(secret: str) -> str:
    """A fast hash is enough: the secret is 256 random bits, which nobody can guess."""
    return hashlib.sha256(secret.encode()).hexdigest()


def is_secret(secret: str, secret_hash: str) -> bool:
    return hmac.compare_digest(hash_secret(secret), secret_hash)


def is_principal_name(text: str) -> bool:
    return _PRINCIPAL.fullmatch(text) is not None and not text.startswith((JWT_PREFIX, CERTIFICATE_PREFIX))


def grants_text(grants: tuple[Grant, ...]) -> str:
    return " ".join(map(str, grants))


def new_stamp() -> int:
    """A number that no other change of the table has."""
    return secrets.randbits(48)
