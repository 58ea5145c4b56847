"""Credentials for random calls: tokens of every role, sessions and JWTs, and expired, revoked, garbled and forged ones.

    credentials = Credentials(seed=7)
    credentials.headers(Random(1))      # what a client sends
    credentials.forwarded(Random(1))    # what a node or a frontend says about its caller

Ids, secrets and the key of the JWTs' issuer are always the same, so that one call of a long run can be repeated by itself.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from liveness.clock import SystemClock
from liveness.security.forwarded_callers import ITEM_PRINCIPALS_HEADER, PRINCIPAL_HEADER
from liveness.security.grants import GRANTABLE_ROLES, parse_grants
from liveness.security.principal import Principal
from liveness.security.token_table import TokenStore
from liveness.security.tokens import DAY_MS, hash_secret, new_stamp
from liveness.store.tokens import TokenRow

Metadata = tuple[tuple[str, str | bytes], ...]

ISSUER, AUDIENCE, KEY_ID = "https://issuer.example", "liveness", "one"
NOW_MS = SystemClock().wall_ms()
"""Of this process: tokens expire by the real clock."""
DAYS = 300 * DAY_MS
NAMESPACE = "orders"
JWTS = 60
ROLES = tuple(role.name.lower() for role in GRANTABLE_ROLES)

_KEY = Ed25519PrivateKey.from_private_bytes(b"a key that signs only for tests!")
_OTHER_KEY = Ed25519PrivateKey.from_private_bytes(b"a key that the server refuses...")

ODD_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 7, 1.5, 1e300, float("nan"), float("inf"), 2**63, 10**400, "", "orders", "\0", "\ud800", "\u202e", "x" * 900,
    "x" * 2_000, [], ["orders", 7, None, []], {}, {"a": {"b": []}}, [[]],
)  # fmt: skip
CLAIMS = ("iss", "aud", "exp", "sub", "nbf", "iat", "jti", "role", "crit", "")
HEADER_FIELDS = ("alg", "kid", "typ", "crit", "b64", "jwk", "x5c", "zip", "")
ODD_JSON = (
    b"", b"{", b"null", b"[]", b"7", b'"a"', b"\xff", b"[" * 4_000, b'{"alg":' * 1_500, b'{"alg":"EdDSA","alg":"none"}',
    b'{"exp":' + b"9" * 5_000 + b"}", b'{"alg":["EdDSA"]}', b'{"alg":{}}', b'{"kid":[]}', b"\xef\xbb\xbf{}", b"{}\0",
)  # fmt: skip
SCHEMES = ("Bearer ", "bearer ", "BEARER  ", "Bearer", "Basic ", "", "Bearer\t", "Bearer Bearer ")


class Token(NamedTuple):
    name: str
    grants: str
    lasts_ms: int = DAYS
    is_revoked: bool = False
    parent: str = ""
    """The token that a session was created with; empty for a token."""

    @property
    def token_id(self) -> str:
        own = hashlib.sha256(self.name.encode()).hexdigest()[:12]
        return f"{hashlib.sha256(self.parent.encode()).hexdigest()[:12]}-{own}" if self.parent else own

    @property
    def secret(self) -> str:
        return base64.urlsafe_b64encode(hashlib.sha256(self.name.encode()).digest()).decode().rstrip("=")

    @property
    def text(self) -> str:
        return f"{'lvs' if self.parent else 'lvt'}_{self.token_id}_{self.secret}"

    @property
    def principal(self) -> Principal:
        return Principal(
            self.owner, parse_grants(self.grants), "token", self.token_id, NOW_MS + self.lasts_ms
        )

    @property
    def owner(self) -> str:
        """The name of the principal; that of a session is its token's."""
        return self.parent or self.name

    def row(self) -> TokenRow:
        return TokenRow(
            token_id=self.token_id,
            principal=self.owner,
            secret_hash=hash_secret(self.secret),
            grants=self.grants,
            created_wall_ms=NOW_MS - DAY_MS,
            expires_wall_ms=NOW_MS + self.lasts_ms,
            revoked_wall_ms=None,
            created_by="",
        )


ADMIN = Token("admin-everywhere", "admin:*")
SPARE = Token("spare", "reader:*")
"""Calls may revoke this one: random requests know its id."""
LIVE = (
    *(Token(f"{role}-of-one", f"{role}:{NAMESPACE}") for role in ROLES),
    *(Token(f"{role}-of-all", f"{role}:*") for role in ROLES),
    Token("worker-of-some-keys", f"worker:{NAMESPACE}:w2 worker:other:w"),
    Token("nothing", "reader:elsewhere"),
    Token("of-a-newer-version", "owner:orders"),
    Token("a-hundred-grants", " ".join(f"worker:{'n' * 580}{number}" for number in range(100))),
    SPARE,
)
SESSIONS = (
    Token("a session", ADMIN.grants, parent=ADMIN.name),
    Token("a session of a reader", f"reader:{NAMESPACE}", parent="reader-of-one"),
)
OVER = (
    Token("expired", "admin:*", lasts_ms=-1_000),
    Token("revoked", "admin:*", is_revoked=True),
    Token("a session of nobody", "admin:*", parent="revoked"),
)
UNKNOWN = (Token("not stored", "admin:*"), Token("no session", "admin:*", parent=ADMIN.name))


class Credentials:
    def __init__(self, seed: int) -> None:
        random = Random(f"credentials {seed}")
        self._jwts = [_signed(random) for _ in range(JWTS)]
        self._forged_jwts = [_forged(random) for _ in range(JWTS)]

    def headers(self, random: Random) -> Metadata:
        """What a client sends to show who it is."""
        kind = random.random()
        if kind < 0.4:
            return _bearer(ADMIN.text)
        if kind < 0.7:
            return _bearer(random.choice(LIVE).text)
        if kind < 0.75:
            return _bearer(random.choice(SESSIONS).text)
        if kind < 0.83:
            return _bearer(random.choice(self._jwts))
        if kind < 0.87:
            return ()
        return self._refused(random)

    def _refused(self, random: Random) -> Metadata:
        match random.randrange(6):
            case 0:
                return _bearer(random.choice((*OVER, *UNKNOWN)).text)
            case 1:
                return _bearer(_garbled(random.choice((ADMIN, *SESSIONS)).text, random))
            case 2:
                return _bearer(random.choice(self._forged_jwts))
            case 3:
                return _bearer(_garbled(random.choice(self._jwts), random))
            case 4:
                return (("authorization", random.choice(SCHEMES) + random.choice((ADMIN.text, ""))),)
            case _:
                return (*_bearer(ADMIN.text), *_bearer(random.choice((ADMIN, SPARE)).text))

    def forwarded(self, random: Random) -> Metadata:
        """What a node or a frontend says about the caller of a call, or a batch of heartbeats, that it forwards."""
        kind = random.random()
        if kind < 0.4:
            return ((PRINCIPAL_HEADER, ADMIN.principal.encoded()),)
        if kind < 0.75:
            return ((PRINCIPAL_HEADER, random.choice((*LIVE, *OVER)).principal.encoded()),)
        if kind < 0.9:
            named = [token.principal.encoded().decode() for token in random.choices(LIVE, k=3)]
            positions = [random.randrange(-4, 5) for _ in range(random.choice((0, 1, 2, 3, 1_000)))]
            encoded = msgspec.msgpack.encode([named, positions])
            header = (ITEM_PRINCIPALS_HEADER, _garbled_bytes(encoded, random) if kind < 0.8 else encoded)
            return (header,)
        if kind < 0.97:
            return ((PRINCIPAL_HEADER, _garbled_bytes(ADMIN.principal.encoded(), random)),)
        return ()

    def value(self, random: Random) -> str:
        """What an HTTP client puts into a header, a cookie or a form: without the scheme."""
        headers = self.headers(random)
        value = headers[0][1] if headers else ""
        return value.removeprefix("Bearer ") if isinstance(value, str) else ""


async def insert_tokens(store: TokenStore) -> None:
    """Insert what is not there, or not any more: calls revoke tokens and end sessions."""
    _, rows = await store.read_tokens()
    known = {row.token_id for row in rows}
    for token in (ADMIN, *LIVE, *OVER, *SESSIONS):
        if token.token_id not in known:
            insert = store.insert_session if token.parent else store.insert_token
            await insert(token.row(), new_stamp())
            if token.is_revoked:
                await store.revoke_token(token.token_id, NOW_MS, new_stamp())


def jwt_settings(folder: Path) -> dict[str, Any]:
    """The settings of a server that accepts the JWTs. The issuer's key is written to the folder."""
    entry = json.loads(jwt.algorithms.OKPAlgorithm.to_jwk(_KEY.public_key()))
    path = folder / "jwks.json"
    path.write_text(json.dumps({"keys": [{**entry, "kid": KEY_ID, "use": "sig"}]}), encoding="utf-8")
    return {
        "auth_jwt_issuer": ISSUER,
        "auth_jwt_audience": AUDIENCE,
        "auth_jwt_keys": str(path),
        "auth_jwt_grants": (
            f"role=worker=>worker:{NAMESPACE}",
            f"role=reader=>reader:{NAMESPACE}",
            "role=admin=>admin:*",
            f"sub=*=>producer:{NAMESPACE}",
        ),
    }


def _bearer(text: str) -> Metadata:
    return (("authorization", f"Bearer {text}"),)


def _signed(random: Random) -> str:
    """A JWT of the issuer: half of them are in order, the others have odd claims."""
    claims: dict[str, Any] = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": random.choice(("system:serviceaccount:shop:render", "alice")),
        "exp": NOW_MS // 1_000 + DAYS // 1_000,
        "role": random.choice(("admin", "worker", ["reader", "nothing"])),
    }
    if random.random() < 0.5:
        for _ in range(random.choice((1, 1, 2))):
            claims[random.choice(CLAIMS)] = random.choice(ODD_VALUES)
    return _jwt({"alg": "EdDSA", "kid": KEY_ID}, claims, _KEY)


def _forged(random: Random) -> str:
    """A JWT with an odd header, an odd body, or a signature that is not the issuer's."""
    header: Any = {"alg": "EdDSA", "kid": KEY_ID}
    body: Any = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": NOW_MS // 1_000 + 600}
    match random.randrange(4):
        case 0:
            header[random.choice(HEADER_FIELDS)] = random.choice(
                (*ODD_VALUES, "none", "HS256", "RS256", "EdDSA")
            )
        case 1:
            header = random.choice(ODD_JSON)
        case 2:
            body = random.choice(ODD_JSON)
        case _:
            return _jwt(header, body, _OTHER_KEY)
    return _jwt(header, body, _KEY)


def _jwt(header: Any, body: Any, key: Ed25519PrivateKey) -> str:
    parts = [_base64(part if isinstance(part, bytes) else _json(part)) for part in (header, body)]
    return ".".join((*parts, _base64(key.sign(".".join(parts).encode()))))


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _garbled(text: str, random: Random) -> str:
    """With some characters changed, left out or inserted."""
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(text) + 1)
        left_out = random.choice((0, 1, 1, 5))
        inserted = random.choice(("", "", "_", "-", ".", "..", " ", "=", "A", "lvt_", "x" * 500))
        text = text[:at] + inserted + text[at + left_out :]
    return text


def _garbled_bytes(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(changed) + 1)
        odd: Sequence[bytes] = (b"", b"\0", b"\xff", b"[", b'"', b"\\ud800", b"9" * 400, random.randbytes(3))
        changed[at : at + random.randrange(4)] = random.choice(odd)
    return bytes(changed)
