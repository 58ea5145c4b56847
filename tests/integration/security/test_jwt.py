"""JSON Web Tokens of a foreign issuer, as Kubernetes and OIDC providers sign them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from liveness.security.jwt_verifier import KeySet
from liveness.v1 import access_pb2, token_pb2
from tests.integration.security.auth_harness import AuthHarness, Client
from tests.integration.server.server_harness import refusal

ISSUER, AUDIENCE = "https://issuer.example", "liveness"
RULES = (
    "sub=system:serviceaccount:shop:*=>worker:shop",
    "groups=oncall=>operator:*",
    "cert=alice=>admin:*",
)
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_KEY = ec.generate_private_key(ec.SECP256R1())


def jwks(**keys: Any) -> str:
    entries = []
    for kid, key in keys.items():
        algorithm = (
            jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
        )
        entries.append({**json.loads(algorithm.to_jwk(key.public_key())), "kid": kid, "use": "sig"})
    return json.dumps({"keys": entries})


class JwtHarness(AuthHarness):
    keys: Path

    def key_set(self) -> KeySet:
        authentication = self.server._authentication
        assert authentication is not None
        assert authentication.keys is not None
        return authentication.keys

    def claims(self, **changes: Any) -> dict[str, Any]:
        now_s = self.clock.wall_ms() // 1_000
        claims = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": "system:serviceaccount:shop:render",
            "exp": now_s + 600,
            "iat": now_s,
            **changes,
        }
        return {name: value for name, value in claims.items() if value is not None}

    def signed(self, key: Any = KEY, kid: str = "one", algorithm: str = "RS256", **changes: Any) -> str:
        return jwt.encode(self.claims(**changes), key, algorithm=algorithm, headers={"kid": kid})


@pytest.fixture
async def issuer(tmp_path: Path) -> AsyncIterator[JwtHarness]:
    harness = JwtHarness(f"sqlite:///{tmp_path}/liveness.db")
    harness.keys = tmp_path / "jwks.json"
    harness.keys.write_text(jwks(one=KEY))
    await harness.start(
        auth_jwt_issuer=ISSUER,
        auth_jwt_audience=AUDIENCE,
        auth_jwt_keys=str(harness.keys),
        auth_jwt_grants=RULES,
    )
    yield harness
    await harness.stop()


async def who(client: Client) -> Any:
    return await client.admin.WhoAmI(token_pb2.WhoAmIRequest())


async def test_claims_become_a_principal_and_its_grants(issuer: JwtHarness) -> None:
    client = issuer.client(issuer.signed(groups=["dev", "oncall"]))
    me = await who(client)
    assert (me.principal, me.credential) == ("jwt:system:serviceaccount:shop:render", "jwt")
    assert list(me.grants) == ["worker:shop", "operator:*"]
    request = token_pb2.CanIRequest(role=access_pb2.ROLE_READER, target_namespace="any")
    assert (await client.admin.CanI(request)).allowed
    assert list((await who(issuer.client(issuer.signed(sub="alice", cert="alice")))).grants) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"aud": "another"},
        {"aud": None},
        {"iss": "https://evil.example"},
        {"iss": None},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
        {"exp": None},
        {"exp": "soon"},
        {"exp": True},
        {"exp": 1e300},
        # Half of a surrogate pair, which no answer can contain; and what no database stores.
        {"sub": "alice\ud800"},
        {"sub": "alice\0"},
        {"jti": "\ud800"},
    ],
    ids=ascii,
)
async def test_tokens_for_others_and_incomplete_ones_are_refused(issuer: JwtHarness, changes: Any) -> None:
    try:
        token = issuer.signed(**changes)
    except TypeError:  # the library refuses to write it; its bytes can still be signed
        payload = json.dumps(issuer.claims(**changes)).encode()
        token = jwt.PyJWS().encode(payload, KEY, algorithm="RS256", headers={"kid": "one"})
    assert (await refusal(who(issuer.client(token)))).reason == "UNAUTHENTICATED"


async def test_unsigned_and_symmetric_tokens_are_refused(issuer: JwtHarness) -> None:
    public_pem = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    header = {"kid": "one"}
    unsigned = jwt.encode(issuer.claims(), "", algorithm="none", headers=header)
    # The library refuses a public key as a shared secret, so that the forgery is made by hand.
    head = jwt.utils.base64url_encode(json.dumps({"alg": "HS256", "typ": "JWT", **header}).encode())
    signing_input = head + b"." + jwt.utils.base64url_encode(json.dumps(issuer.claims()).encode())
    signature = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).sign(
        signing_input, public_pem
    )
    forged = (signing_input + b"." + jwt.utils.base64url_encode(signature)).decode()
    wrong_key = issuer.signed(rsa.generate_private_key(public_exponent=65537, key_size=2048))
    wrong_algorithm = issuer.signed(algorithm="RS512")
    genuine = issuer.signed()
    changed = genuine[:-4] + ("AAAA" if genuine[-4:] != "AAAA" else "BBBB")
    for token in (unsigned, forged, wrong_key, wrong_algorithm, changed):
        assert (await refusal(who(issuer.client(token)))).reason == "UNAUTHENTICATED"
    await who(issuer.client(genuine))


@pytest.mark.parametrize("algorithm", [["RS256"], {}, 7, None])
async def test_an_algorithm_that_is_no_text_is_refused(issuer: JwtHarness, algorithm: Any) -> None:
    _, body, signature = issuer.signed().split(".")
    head = jwt.utils.base64url_encode(json.dumps({"alg": algorithm, "kid": "one"}).encode()).decode()
    client = issuer.client(f"{head}.{body}.{signature}")
    assert (await refusal(who(client))).reason == "UNAUTHENTICATED"


@pytest.mark.parametrize(("skew_s", "accepted"), [(-31, False), (-29, True), (29, True), (31, False)])
async def test_thirty_seconds_of_clock_skew_are_allowed(
    issuer: JwtHarness, skew_s: int, accepted: bool
) -> None:
    """Negative: the token's time has not come yet by the server's clock. Positive: it has expired."""
    now_s = issuer.clock.wall_ms() // 1_000
    times: dict[str, Any] = {"exp": now_s - skew_s} if skew_s > 0 else {"nbf": now_s - skew_s}
    call = who(issuer.client(issuer.signed(**times)))
    if accepted:
        assert (await call).authenticated
    else:
        assert (await refusal(call)).reason == "UNAUTHENTICATED"


async def test_a_token_that_was_accepted_expires(issuer: JwtHarness) -> None:
    client = issuer.client(issuer.signed())
    await who(client)
    issuer.clock.move(629_000)
    await who(client)
    issuer.clock.move(1_000)
    assert (await refusal(who(client))).reason == "UNAUTHENTICATED"


async def test_keys_are_rotated_and_the_last_good_ones_stay(issuer: JwtHarness) -> None:
    keys = issuer.key_set()
    rotated = issuer.client(issuer.signed(OTHER_KEY, "two", "ES256"))
    assert (await refusal(who(rotated))).reason == "UNAUTHENTICATED"
    issuer.keys.write_text(jwks(one=KEY, two=OTHER_KEY))
    await keys.fetch()
    await who(rotated)
    issuer.keys.write_text("the issuer is down")
    await keys.fetch()
    await who(rotated)
    issuer.keys.write_text(jwks(one=KEY))
    await keys.fetch()
    assert (await refusal(who(rotated))).reason == "UNAUTHENTICATED"


async def test_unknown_key_ids_make_the_server_ask_every_thirty_seconds_at_most(issuer: JwtHarness) -> None:
    """Keys come from a URL, here of a real HTTP server."""
    asked: list[str] = []

    class KeyServer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(jwks(one=KEY).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), KeyServer)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        await issuer.restart(auth_jwt_keys=f"http://127.0.0.1:{server.server_port}/jwks")
        keys = issuer.key_set()
        assert len(asked) == 1
        running = asyncio.create_task(keys.run())
        while len(asked) < 2 or not issuer.clock._sleepers:
            await asyncio.sleep(0)
        for _ in range(100):
            await refusal(who(issuer.client(issuer.signed(OTHER_KEY, "unknown", "ES256"))))
        assert len(asked) == 2
        issuer.clock.move(30_000)
        await refusal(who(issuer.client(issuer.signed(OTHER_KEY, "unknown", "ES256"))))
        while len(asked) < 3:
            await asyncio.sleep(0)
        await who(issuer.client(issuer.signed()))
        running.cancel()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
