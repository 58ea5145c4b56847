"""A credential is verified once, and again after everything that could change the result."""

from __future__ import annotations

import asyncio
from typing import Any

from sqlalchemy import create_engine, update

from liveness.security.authentication import HOUR_MS
from liveness.security.principal import Caller
from liveness.security.suspicion import TokenAddresses
from liveness.security.tokens import create_session, new_stamp
from liveness.store.schema import tokens
from liveness.store.tokens import TokenRow
from liveness.v1 import access_pb2, token_pb2
from tests.integration.security.auth_harness import AuthHarness, Client
from tests.integration.security.test_key_ownership import NAMESPACE, beat
from tests.integration.server.server_harness import RENEWED, refusal


async def who(client: Client) -> Any:
    return await client.admin.WhoAmI(token_pb2.WhoAmIRequest())


def remembered(auth: AuthHarness, client: Client) -> Caller | None:
    assert auth.server.authenticator is not None
    return auth.server.authenticator.known_header(f"Bearer {client.token}")


def addresses_of(auth: AuthHarness) -> TokenAddresses:
    return auth.server.telemetry.suspicion._tokens


async def look_at_the_tokens(auth: AuthHarness) -> None:
    """As twice a second in a server that drives itself."""
    await auth.tokens.refresh()
    auth.tokens.on_poll()


async def test_a_look_without_a_change_verifies_nobody_again(auth: AuthHarness) -> None:
    worker = await auth.caller("render", f"worker:{NAMESPACE}")
    await beat(worker)
    caller = remembered(auth, worker)
    assert caller is not None
    await look_at_the_tokens(auth)
    await beat(worker)
    assert remembered(auth, worker) is caller


async def test_changed_grants_count_from_the_next_look_on(auth: AuthHarness) -> None:
    """Nothing in the product changes the grants of a token; an admin may do it in the database."""
    created = await auth.create_token("render", f"worker:{NAMESPACE}")
    worker = auth.client(created.secret)
    await beat(worker, sequence=1)
    engine = create_engine(auth.url)
    with engine.begin() as connection:
        connection.execute(
            update(tokens)
            .where(tokens.c.token_id == created.token.token_id)
            .values(grants="worker:other", stamp=tokens.c.stamp + 1)
        )
    engine.dispose()
    assert (await beat(worker, sequence=2)).outcome == RENEWED
    await look_at_the_tokens(auth)
    assert (await refusal(beat(worker, sequence=3))).reason == "PERMISSION_DENIED"
    request = token_pb2.CanIRequest(role=access_pb2.ROLE_WORKER, target_namespace="other")
    assert (await worker.admin.CanI(request)).allowed


async def test_a_heartbeat_with_a_revoked_token_is_refused(auth: AuthHarness) -> None:
    """Although it equals the one before, except for its sequence."""
    created = await auth.create_token("render", f"worker:{NAMESPACE}")
    worker = auth.client(created.secret)
    for sequence in (1, 2, 3):
        await beat(worker, sequence=sequence)
    request = token_pb2.RevokeTokenRequest(token_id=created.token.token_id)
    await auth.admin_client.admin.RevokeToken(request)
    assert (await refusal(beat(worker, sequence=4))).reason == "UNAUTHENTICATED"
    assert remembered(auth, worker) is None


async def test_a_heartbeat_with_an_expired_token_is_refused(auth: AuthHarness) -> None:
    request = token_pb2.CreateTokenRequest(principal="render", grants=[f"worker:{NAMESPACE}"])
    request.lifetime.FromMilliseconds(60_000)
    worker = auth.client((await auth.admin_client.admin.CreateToken(request)).secret)
    auth.clock.jump_wall(59_999)
    for sequence in (1, 2, 3):
        await beat(worker, sequence=sequence)
    auth.clock.jump_wall(1)
    assert (await refusal(beat(worker, sequence=4))).reason == "UNAUTHENTICATED"


async def test_a_session_is_refused_as_soon_as_its_token_expires(auth: AuthHarness) -> None:
    """Even if its own row says that it lasts longer."""
    request = token_pb2.CreateTokenRequest(principal="ann", grants=["reader:shop"])
    request.lifetime.FromMilliseconds(60_000)
    token_id = (await auth.admin_client.admin.CreateToken(request)).token.token_id
    session = create_session(token_id)
    now_ms = auth.clock.wall_ms()
    row = TokenRow(
        token_id=session.token_id,
        principal="ann",
        secret_hash=session.secret_hash,
        grants="reader:shop",
        created_wall_ms=now_ms,
        expires_wall_ms=now_ms + HOUR_MS // 2,
        revoked_wall_ms=None,
        created_by="ann",
    )
    await auth.server.store.insert_session(row, new_stamp())
    await look_at_the_tokens(auth)
    browser = auth.client(session.text)
    assert (await who(browser)).principal == "ann"
    auth.clock.jump_wall(59_999)
    assert (await who(browser)).principal == "ann"
    auth.clock.jump_wall(1)
    assert (await refusal(who(browser))).reason == "UNAUTHENTICATED"


async def test_callers_on_one_connection_are_told_apart(auth: AuthHarness) -> None:
    """Their calls overlap, and some of them have no credential."""
    clients = {f"p{number}": await auth.caller(f"p{number}", f"worker:{NAMESPACE}") for number in range(10)}
    nobody = auth.client(None)

    async def ask(name: str, client: Client) -> None:
        assert (await who(client)).principal == name

    async def ask_without_credential() -> None:
        assert (await refusal(beat(nobody))).reason == "UNAUTHENTICATED"

    for _ in range(5):
        await asyncio.gather(
            *(ask(name, client) for name, client in clients.items()),
            *(ask_without_credential() for _ in range(5)),
        )


async def test_the_address_of_a_caller_is_counted_in_each_hour(auth: AuthHarness) -> None:
    created = await auth.create_token("render", f"worker:{NAMESPACE}")
    worker, token_id = auth.client(created.secret), created.token.token_id
    for _ in range(3):
        await beat(worker)
        await beat(worker)
        assert addresses_of(auth)._seen[token_id] == {"127.0.0.1"}
        auth.clock.jump_wall(HOUR_MS)
        auth.server.telemetry.suspicion.suspicions()  # a look at the alerts begins the new hour
        assert addresses_of(auth)._seen == {}
