"""JSON Web Tokens of a foreign issuer: asymmetric signatures only; issuer, audience, expiry and subject are required."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jwt
import structlog

from liveness.clock import Clock
from liveness.domain.errors import Unauthenticated
from liveness.security.grant_rules import GrantRule, grants_for
from liveness.security.principal import INVALID_TOKEN, JWT, JWT_PREFIX, WALL_MS_MAX, Principal

logger = structlog.get_logger("liveness.security")

ASYMMETRIC_ALGORITHMS = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
LEEWAY_MS = 30_000
REFRESH_INTERVAL_MS = 300_000
UNKNOWN_KEY_INTERVAL_MS = 30_000
"""How often a key id that is not known makes the server fetch the keys again."""
FETCH_TIMEOUT_S = 10.0
KEYS_BYTES_MAX = 1_048_576
SUBJECT_CHARS_MAX = 1_000


class JwtConfig(NamedTuple):
    issuer: str
    audience: str
    rules: tuple[GrantRule, ...]


class SigningKey(NamedTuple):
    key: jwt.PyJWK
    algorithm: str


class KeySet:
    """The issuer's public keys. A fetch that fails leaves those of the last one."""

    def __init__(self, source: str, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._keys: dict[str, SigningKey] = {}
        self._asked_ms = -REFRESH_INTERVAL_MS
        self._wanted = asyncio.Event()
        self.on_change: Callable[[], None] = lambda: None

    def find(self, key_id: str | None) -> SigningKey | None:
        """`key_id`: None if the token names none, which is enough if there is one key only."""
        if key_id is None:
            return next(iter(self._keys.values())) if len(self._keys) == 1 else None
        found = self._keys.get(key_id)
        if found is None and self._clock.monotonic_ms() - self._asked_ms >= UNKNOWN_KEY_INTERVAL_MS:
            self._wanted.set()
        return found

    async def run(self) -> None:
        """Fetch the keys now and then, and soon after an unknown key id was seen."""
        while True:
            await self.fetch()
            sleep = asyncio.ensure_future(self._clock.sleep(REFRESH_INTERVAL_MS))
            wanted = asyncio.ensure_future(self._wanted.wait())
            try:
                await asyncio.wait({sleep, wanted}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                sleep.cancel()
                wanted.cancel()

    async def fetch(self) -> None:
        self._asked_ms = self._clock.monotonic_ms()
        self._wanted.clear()
        try:
            keys = parse_key_set(await asyncio.to_thread(_read_source, self._source))
        except (OSError, ValueError, jwt.PyJWTError) as error:
            logger.warning(
                "cannot read the keys for JWTs; using those read last", source=self._source, why=str(error)
            )
            return
        if keys.keys() != self._keys.keys():
            logger.info("read the keys for JWTs", source=self._source, keys=sorted(keys))
        self._keys = keys
        self.on_change()


def _read_source(source: str) -> bytes:
    if not source.startswith(("https://", "http://")):
        return Path(source).read_bytes()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)
    with opener.open(source, timeout=FETCH_TIMEOUT_S) as response:
        content: bytes = response.read(KEYS_BYTES_MAX + 1)
    if len(content) > KEYS_BYTES_MAX:
        raise ValueError("the key set is too large")
    return content


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect could lead to a place without TLS."""

    def redirect_request(self, *_: Any) -> None:
        return None


def parse_key_set(content: bytes) -> dict[str, SigningKey]:
    """The keys by their ids. Keys that do not verify signatures are left out, as are symmetric ones."""
    document = json.loads(content)
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ValueError('it is no key set: there is no list "keys"')
    found: dict[str, SigningKey] = {}
    for number, entry in enumerate(listed):
        if not isinstance(entry, dict) or entry.get("kty") == "oct" or entry.get("use", "sig") != "sig":
            continue
        try:
            key = jwt.PyJWK(entry)
        except jwt.PyJWTError:
            continue  # of a kind that this version does not know
        algorithm = str(key.algorithm_name)
        if algorithm in ASYMMETRIC_ALGORITHMS:
            found[str(entry.get("kid", f"#{number}"))] = SigningKey(key, algorithm)
    if not found:
        raise ValueError("it has no key that verifies signatures")
    return found


class JwtVerifier:
    def __init__(self, config: JwtConfig, keys: KeySet, clock: Clock) -> None:
        self._config = config
        self._keys = keys
        self._clock = clock

    def verify(self, text: str) -> Principal:
        """The principal expires with the leeway."""
        try:
            header = jwt.get_unverified_header(text)
            # It may be anything that JSON can say, also a list.
            if not isinstance(header.get("alg"), str) or header["alg"] not in ASYMMETRIC_ALGORITHMS:
                raise _invalid()
            signing_key = self._keys.find(header.get("kid"))
            if signing_key is None or header["alg"] != signing_key.algorithm:
                raise _invalid()
            claims = jwt.decode(
                text,
                signing_key.key,
                algorithms=[signing_key.algorithm],
                issuer=self._config.issuer,
                audience=self._config.audience,
                # Times are compared below, by the injected clock.
                options={
                    "require": ["iss", "aud", "exp", "sub"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except jwt.PyJWTError as error:
            raise _invalid() from error
        expires_ms = self._check_times(claims)
        subject, token_id = claims["sub"], claims.get("jti", "")
        if not _is_plain(subject) or not 0 < len(subject) <= SUBJECT_CHARS_MAX or not _is_plain(token_id):
            raise _invalid()
        return Principal(
            JWT_PREFIX + subject,
            grants_for(self._config.rules, claims),
            JWT,
            token_id[:SUBJECT_CHARS_MAX],
            expires_ms,
        )

    def _check_times(self, claims: Mapping[str, Any]) -> int:
        """Returns when the token stops being accepted."""
        now_ms = self._clock.wall_ms()
        for name in ("nbf", "iat"):
            if name in claims and now_ms < _milliseconds(claims[name]) - LEEWAY_MS:
                raise _invalid()
        expires_ms = min(_milliseconds(claims["exp"]) + LEEWAY_MS, WALL_MS_MAX)
        if now_ms >= expires_ms:
            raise _invalid()
        return expires_ms


def _milliseconds(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**50:
        raise _invalid()
    return int(value * 1_000)


def _is_plain(value: object) -> bool:
    """Whether it is text that can be stored, sent and shown. JSON may have half of a surrogate pair in a text, which cannot be
    encoded, and control characters."""
    return isinstance(value, str) and value.isprintable()


def _invalid() -> Unauthenticated:
    return Unauthenticated(why=INVALID_TOKEN)


def looks_like_jwt(text: str) -> bool:
    return text.count(".") == 2
