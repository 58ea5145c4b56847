"""Signing in with a token: the cookie, who may use it, and what ends it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from liveness.store.tokens import SESSIONS_MAX
from liveness.v1 import token_pb2
from tests.integration.http.http_client import JSON, Answer, Client
from tests.integration.http.http_harness import HttpHarness
from tests.integration.security.auth_harness import AuthHarness

HOUR_MS = 3_600_000
COOKIE = "__Host-liveness-session"
WORKERS = "/v1/namespaces/shop/workers"
PAUSE = "/v1/namespaces/shop/workers/pause"
FOREIGN = "http://evil.example"


class SignInHarness(HttpHarness):
    harness: AuthHarness

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.harness = AuthHarness(url)

    @property
    def origin(self) -> dict[str, str]:
        return {"Origin": f"http://127.0.0.1:{self.port}"}

    async def token(self, principal: str, *grants: str, **fields: Any) -> Any:
        return await self.harness.create_token(principal, *grants, **fields)

    async def post(self, path: str, value: Any, headers: Mapping[str, str] | None = None) -> Answer:
        headers = {**JSON, **self.origin, **(headers or {})}
        return await self.client.ask("POST", path, headers, json.dumps(value).encode())

    async def sign_in(self, token: str, session: str = "") -> str:
        """Returns the session."""
        answer = await self.post("/auth/sign-in", {"token": token}, cookie(session) if session else None)
        assert answer.code == 200, answer
        return session_in(answer)

    async def get(self, path: str, session: str) -> Answer:
        return await self.client.ask("GET", path, cookie(session))

    async def code(self, session: str, path: str = "/auth/session") -> int:
        return (await self.get(path, session)).code


def cookie(session: str) -> dict[str, str]:
    return {"Cookie": f"theme=dark; {COOKIE}={session}"}


def session_in(answer: Answer) -> str:
    name, _, value = answer.headers["set-cookie"].split(";")[0].partition("=")
    assert name == COOKIE
    return value


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[SignInHarness]:
    harness = SignInHarness(f"sqlite:///{folder}/liveness.db")
    await harness.open(asks_callers=True)
    yield harness
    await harness.close()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[SignInHarness]:
    async with serving(tmp_path) as harness:
        yield harness


async def test_a_person_signs_in_reads_changes_and_signs_out(site: SignInHarness) -> None:
    token = (await site.token("ann", "operator:shop")).secret
    assert (await site.client.ask("GET", "/auth/session")).code == 401
    answer = await site.post("/auth/sign-in", {"token": f" {token}\n"})
    session = session_in(answer)
    assert answer.json()["principal"] == "ann"
    assert token not in str(answer)
    assert session not in str(answer.body)
    who = (await site.get("/auth/session", session)).json()
    assert (who["principal"], who["grants"], who["credential"]) == ("ann", ["operator:shop"], "session")
    assert who["expire_time"] == answer.json()["expire_time"]
    assert await site.code(session, WORKERS) == 200
    assert await site.code(session, "/v1/namespaces/other/workers") == 403
    assert (await site.post(PAUSE, {"all": True}, cookie(session))).code == 200
    signed_out = await site.post("/auth/sign-out", {}, cookie(session))
    assert (signed_out.code, signed_out.json()) == (200, {"ended": 1})
    assert f"{COOKIE}=; Max-Age=0" in signed_out.headers["set-cookie"]
    assert await site.code(session) == 401
    again = await site.post("/auth/sign-out", {}, cookie(session))
    assert (again.code, again.json()) == (200, {"ended": 0})


async def test_only_the_browser_itself_can_read_the_cookie(site: SignInHarness) -> None:
    token = (await site.token("ann", "reader:shop")).secret
    answer = await site.post("/auth/sign-in", {"token": token})
    first, *attributes = answer.headers["set-cookie"].split("; ")
    assert first.startswith(f"{COOKIE}=lvs_")
    assert set(attributes) == {"Max-Age=43200", "Path=/", "Secure", "HttpOnly", "SameSite=Strict"}
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": FOREIGN},
        {"Origin": "http://127.0.0.1:1"},  # cookies know no ports: it gets the cookie, too
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_a_page_of_another_site_cannot_use_the_session(
    site: SignInHarness, headers: dict[str, str]
) -> None:
    token = (await site.token("ann", "operator:shop")).secret
    session = await site.sign_in(token)
    for path, value in [
        (PAUSE, {"all": True}),
        ("/auth/sign-in", {"token": token}),
        ("/auth/sign-out", {"everywhere": True}),
    ]:
        answer = await site.post(path, value, {**cookie(session), **headers})
        assert (answer.code, answer.error["reason"]) == (403, "ORIGIN_NOT_ALLOWED"), path
        assert "set-cookie" not in answer.headers
    assert await site.code(session) == 200


async def test_a_change_with_a_session_must_say_which_page_it_is_from(site: SignInHarness) -> None:
    token = (await site.token("ann", "operator:shop")).secret
    session = await site.sign_in(token)
    answer = await site.client.ask("POST", PAUSE, {**JSON, **cookie(session)}, b'{"all": true}')
    assert (answer.code, answer.error["reason"]) == (403, "ORIGIN_NOT_ALLOWED")
    bearer = {"Authorization": f"Bearer {token}"}
    assert (await site.client.ask("POST", PAUSE, {**JSON, **bearer}, b'{"all": true}')).code == 200


async def test_a_form_cannot_sign_anybody_in(site: SignInHarness) -> None:
    token = (await site.token("ann", "reader:shop")).secret
    answer = await site.post("/auth/sign-in", {"token": token}, {"Content-Type": "text/plain"})
    assert (answer.code, answer.error["reason"]) == (415, "CONTENT_TYPE_NOT_JSON")
    assert (await site.client.ask("GET", f"/auth/sign-in?token={token}")).code == 405


async def test_each_sign_in_makes_a_new_session_and_ends_the_one_before(site: SignInHarness) -> None:
    ann = (await site.token("ann", "reader:shop")).secret
    mallory = (await site.token("mallory", "reader:shop")).secret
    planted = await site.sign_in(mallory)
    session = await site.sign_in(ann, planted)
    assert session != planted
    assert (await site.code(planted), await site.code(session)) == (401, 200)
    unknown = "lvs_aaaaaaaaaaaa-aaaaaaaaaaaa_" + "A" * 43
    assert await site.sign_in(ann, unknown) not in (unknown, session)


async def test_a_sign_in_that_fails_keeps_the_session(site: SignInHarness) -> None:
    session = await site.sign_in((await site.token("ann", "reader:shop")).secret)
    answer = await site.post("/auth/sign-in", {"token": "lvt_aaaaaaaaaaaa_" + "A" * 43}, cookie(session))
    assert (answer.code, answer.error["reason"]) == (401, "UNAUTHENTICATED")
    assert "set-cookie" not in answer.headers
    assert await site.code(session) == 200


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[]", b'{"token": 1}', b'{"token": ""}', b'{"token": "\xc3\xa9"}', b'{"x": 1}', b"\xff"],
)
async def test_a_body_without_a_token_is_refused(site: SignInHarness, body: bytes) -> None:
    answer = await site.client.ask("POST", "/auth/sign-in", {**JSON, **site.origin}, body)
    assert (answer.code, answer.error["reason"]) == (400, "INVALID_FIELD")


async def test_a_session_and_its_streams_last_12_hours(site: SignInHarness) -> None:
    session = await site.sign_in((await site.token("ann", "reader:shop")).secret)
    site.harness.clock.jump_wall(12 * HOUR_MS - 1)
    assert await site.code(session) == 200
    async with site.client.connect() as stream:
        await stream.send("GET", "/v1/namespaces/shop/events", cookie(session))
        assert (await stream.head())[0] == 200
        site.harness.clock.jump_wall(1)
        assert await site.code(session) == 401
        site.harness.tokens.on_poll()  # as twice a second in a server that drives itself
        async for _ in stream.events():
            pass


async def test_a_session_does_not_outlive_its_token(site: SignInHarness) -> None:
    request = token_pb2.CreateTokenRequest(principal="ann", grants=["reader:shop"])
    request.lifetime.FromMilliseconds(HOUR_MS)
    token = (await site.harness.admin_client.admin.CreateToken(request)).secret
    answer = await site.post("/auth/sign-in", {"token": token})
    assert "Max-Age=3600;" in answer.headers["set-cookie"]
    site.harness.clock.jump_wall(HOUR_MS)
    assert await site.code(session_in(answer)) == 401


async def test_revoking_the_token_ends_its_sessions_and_their_streams(site: SignInHarness) -> None:
    first, second = [await site.token("ann", "reader:shop") for _ in range(2)]
    ended, other = await site.sign_in(first.secret), await site.sign_in(second.secret)
    async with site.client.connect() as stream:
        await stream.send("GET", "/v1/namespaces/shop/events", cookie(ended))
        assert (await stream.head())[0] == 200
        await site.harness.admin_client.admin.RevokeToken(
            token_pb2.RevokeTokenRequest(token_id=first.token.token_id)
        )
        async for _ in stream.events():
            pass
    assert (await site.code(ended), await site.code(other)) == (401, 200)


async def test_signing_out_everywhere_ends_all_sessions_of_the_principal_alone(site: SignInHarness) -> None:
    ann, bob = [(await site.token(name, "reader:shop")).secret for name in ("ann", "bob")]
    sessions = [await site.sign_in(ann) for _ in range(3)]
    others = await site.sign_in(bob)
    answer = await site.post("/auth/sign-out", {"everywhere": True}, cookie(sessions[0]))
    assert (answer.code, answer.json()) == (200, {"ended": 3})
    assert [await site.code(session) for session in sessions] == [401, 401, 401]
    assert await site.code(others) == 200
    assert await site.client.get("/auth/session", Authorization=f"Bearer {ann}")


async def test_a_session_cannot_prolong_itself(site: SignInHarness) -> None:
    session = await site.sign_in((await site.token("ann", "admin:*")).secret)
    answer = await site.post("/auth/sign-in", {"token": session}, cookie(session))
    assert (answer.code, answer.error["reason"]) == (400, "SESSION_NEEDS_TOKEN")
    answer = await site.post("/v1/sessions", {}, cookie(session))
    assert (answer.code, answer.error["reason"]) == (400, "SESSION_NEEDS_TOKEN")


async def test_sessions_take_no_place_of_a_token_and_the_oldest_make_room(site: SignInHarness) -> None:
    first = await site.token("ann", "reader:shop")
    sessions = []
    for _ in range(SESSIONS_MAX + 1):
        sessions.append(await site.sign_in(first.secret))
        site.harness.clock.jump_wall(1)
    assert [await site.code(session) for session in sessions[:2]] == [401, 200]
    assert await site.code(sessions[-1]) == 200
    second = await site.token("ann", "reader:shop")
    listed = await site.harness.admin_client.admin.ListTokens(token_pb2.ListTokensRequest(principal="ann"))
    assert {token.token_id for token in listed.tokens} == {first.token.token_id, second.token.token_id}


async def test_an_authorization_header_goes_before_the_cookie(site: SignInHarness) -> None:
    ann, proxy = [(await site.token(name, "operator:shop")).secret for name in ("ann", "proxy")]
    session = await site.sign_in(ann)
    headers = {**cookie(session), "Authorization": f"Bearer {proxy}"}
    assert (await site.client.get("/auth/session", **headers))["principal"] == "proxy"
    headers["Authorization"] = "Bearer nonsense"
    assert (await site.client.ask("GET", "/auth/session", headers)).code == 401


async def test_two_sessions_in_one_request_are_refused(site: SignInHarness) -> None:
    token = (await site.token("ann", "reader:shop")).secret
    sessions = [await site.sign_in(token) for _ in range(2)]
    headers = {"Cookie": "; ".join(f"{COOKIE}={session}" for session in sessions)}
    assert (await site.client.ask("GET", "/auth/session", headers)).code == 401


async def test_a_session_is_known_to_a_node_that_starts_later(site: SignInHarness) -> None:
    session = await site.sign_in((await site.token("ann", "reader:shop")).secret)
    await site.close()
    await site.open(asks_callers=True)
    assert await site.code(session) == 200


async def test_neither_token_nor_session_is_logged_or_stored(site: SignInHarness) -> None:
    token = (await site.token("ann", "reader:shop")).secret
    with structlog.testing.capture_logs() as logs:
        session = await site.sign_in(token)
        await site.post("/auth/sign-in", {"token": token + "x"})
        await site.post("/auth/sign-out", {}, cookie(session))
        session = await site.sign_in(token)
    stored = str(await site.harness.dump())
    assert "session created" in str(logs)
    for secret in (token, session):
        assert secret[-43:] not in str(logs) + stored


async def test_without_authentication_nobody_needs_to_sign_in(client: Client) -> None:
    assert (await client.get("/auth/session"))["authenticated"] is False
    assert (await client.get(WORKERS, **cookie("nonsense")))["workers"] == []
    assert (await client.refused("POST", "/auth/sign-in", {"token": "lvt_x"}))[1] == "SESSION_NEEDS_TOKEN"
