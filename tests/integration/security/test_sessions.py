"""Sessions of browsers: rows of their own, known to every node, ended together with their token."""

from __future__ import annotations

import pytest

from liveness.domain.errors import Unauthenticated
from liveness.security.first_token import create_first_token
from liveness.security.principal import TOKEN, Caller, Principal, current_caller
from liveness.server.session_handlers import SessionHandlers
from liveness.store.tokens import SESSIONS_MAX, AdminTokenExists
from liveness.v1 import token_pb2 as pb
from tests.integration.security.auth_harness import AuthHarness, Client
from tests.integration.security.test_nodes_and_frontends import nodes
from tests.integration.security.test_tokens import revoke, who
from tests.integration.server.server_harness import refusal

__all__ = ["nodes"]


async def sign_in(harness: AuthHarness, client: Client) -> Client:
    return harness.client((await client.admin.CreateSession(pb.CreateSessionRequest())).secret)


async def is_refused(client: Client) -> bool:
    return (await refusal(who(client))).reason == "UNAUTHENTICATED"


async def test_a_session_has_the_principal_and_the_grants_of_its_token(
    auth_on_each_database: AuthHarness,
) -> None:
    auth = auth_on_each_database
    created = await auth.create_token("ann", "reader:x%3Ay", "operator:shop:render-")
    session = await sign_in(auth, auth.client(created.secret))
    me = await who(session)
    assert (me.principal, list(me.grants)) == ("ann", ["reader:x%3Ay", "operator:shop:render-"])
    assert me.credential == "session"
    assert me.credential_id.startswith(f"{created.token.token_id}-")
    assert (await session.admin.EndSession(pb.EndSessionRequest())).ended == 1
    assert await is_refused(session)


async def test_one_signs_out_everywhere_with_a_token_too(auth_on_each_database: AuthHarness) -> None:
    auth = auth_on_each_database
    ann, bob = [await auth.caller(name, "reader:shop") for name in ("ann", "bob")]
    sessions = [await sign_in(auth, ann) for _ in range(2)]
    others = await sign_in(auth, bob)
    assert (await ann.admin.EndSession(pb.EndSessionRequest())).ended == 0
    assert (await ann.admin.EndSession(pb.EndSessionRequest(everywhere=True))).ended == 2
    assert all([await is_refused(session) for session in sessions])
    assert (await who(others)).principal == "bob"


async def test_sessions_that_are_over_leave_the_table(auth_on_each_database: AuthHarness) -> None:
    auth = auth_on_each_database
    ann = await auth.caller("ann", "reader:shop")
    for _ in range(SESSIONS_MAX + 3):
        await sign_in(auth, ann)
    assert sum(bool(row.parent_id) for row in auth.tokens.rows()) == SESSIONS_MAX
    auth.clock.jump_wall(12 * 3_600_000)
    await sign_in(auth, await auth.caller("bob", "reader:shop"))
    assert [row.principal for row in auth.tokens.rows() if row.parent_id] == ["bob"]


async def test_a_token_that_expires_while_its_call_is_served_gets_no_session(auth: AuthHarness) -> None:
    handlers = SessionHandlers(auth.server.store, auth.tokens, auth.clock)
    current_caller.set(Caller(Principal("ann", (), TOKEN, "ann-1", auth.clock.wall_ms())))
    with pytest.raises(Unauthenticated):
        await handlers.create(pb.CreateSessionRequest())
    assert not any(row.parent_id for row in auth.tokens.rows())


async def test_a_session_of_an_admin_is_no_admin_token(auth: AuthHarness) -> None:
    session = await sign_in(auth, auth.admin_client)
    with pytest.raises(AdminTokenExists):
        await create_first_token(auth.server.store, auth.clock)
    await revoke(auth, (await who(auth.admin_client)).credential_id)
    assert await is_refused(session)
    token = await create_first_token(auth.server.store, auth.clock)
    await auth.tokens.refresh()
    assert (await who(auth.client(token.text))).principal == "admin"
    assert await is_refused(session)


async def test_every_node_knows_a_session_and_its_end(nodes: list[AuthHarness]) -> None:
    first, second = nodes
    ann = await first.caller("ann", "reader:shop")
    session = await sign_in(first, ann)
    assert session.token is not None
    await second.tokens.refresh()
    there = second.client(session.token)
    assert (await who(there)).principal == "ann"
    await there.admin.EndSession(pb.EndSessionRequest(everywhere=True))
    await first.tokens.refresh()
    assert await is_refused(session)
