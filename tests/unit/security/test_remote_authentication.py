"""A frontend asks a node about a header once for all calls that need the answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from liveness.clock import ManualClock
from liveness.domain.errors import Unauthenticated
from liveness.security.remote_authentication import REMEMBERED_MS, RemoteAuthenticator
from liveness.v1.cluster_pb2 import AuthenticateRequest, AuthenticateResponse
from tests.certificates import Authority, Issued


class Call:
    """What gRPC says about a call with this header."""

    def __init__(self, header: str) -> None:
        self._metadata = (("authorization", header),)

    def invocation_metadata(self) -> Any:
        return self._metadata

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}


class AskedNode:
    """The questions that arrived, each with the answer that the test gives."""

    def __init__(self) -> None:
        self.questions: list[tuple[str, asyncio.Future[AuthenticateResponse]]] = []

    async def ask(self, request: AuthenticateRequest) -> AuthenticateResponse:
        answer: asyncio.Future[AuthenticateResponse] = asyncio.get_running_loop().create_future()
        self.questions.append((request.authorization, answer))
        return await answer


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def node() -> AskedNode:
    return AskedNode()


@pytest.fixture
def frontend(clock: ManualClock, node: AskedNode) -> RemoteAuthenticator:
    return RemoteAuthenticator(clock, node.ask)


def ask(frontend: RemoteAuthenticator, header: str = "Bearer a") -> asyncio.Task[Any]:
    return asyncio.create_task(frontend.identify(Call(header)))


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_calls_with_the_same_header_share_a_question(
    frontend: RemoteAuthenticator, node: AskedNode
) -> None:
    calls = [ask(frontend) for _ in range(100)]
    other = ask(frontend, "Bearer b")
    await settled()
    assert [header for header, _ in node.questions] == ["Bearer a", "Bearer b"]
    for name, (_, answer) in zip(("ann", "bob"), node.questions, strict=True):
        answer.set_result(AuthenticateResponse(principal=name))
    assert {caller.principal.name for caller in await asyncio.gather(*calls)} == {"ann"}
    assert (await other).principal.name == "bob"
    assert (await ask(frontend)).principal.name == "ann"
    assert len(node.questions) == 2


async def test_all_of_them_are_refused_and_the_next_call_asks_again(
    frontend: RemoteAuthenticator, node: AskedNode
) -> None:
    calls = [ask(frontend) for _ in range(3)]
    await settled()
    assert len(node.questions) == 1
    node.questions[0][1].set_exception(Unauthenticated())
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(answer, Unauthenticated)
    again = ask(frontend)
    await settled()
    assert len(node.questions) == 2
    again.cancel()


async def test_a_caller_that_hangs_up_leaves_the_question_to_the_others(
    frontend: RemoteAuthenticator, node: AskedNode
) -> None:
    first, second = ask(frontend), ask(frontend)
    await settled()
    assert len(node.questions) == 1
    first.cancel()
    await settled()
    node.questions[0][1].set_result(AuthenticateResponse(principal="ann"))
    assert (await second).principal.name == "ann"
    assert first.cancelled()


async def test_an_answer_counts_from_its_question_on(
    frontend: RemoteAuthenticator, node: AskedNode, clock: ManualClock
) -> None:
    """However long it was on its way: the token may have been revoked meanwhile."""
    slow = ask(frontend)
    await settled()
    clock.move(REMEMBERED_MS)
    late = ask(frontend)
    await settled()
    assert len(node.questions) == 2
    node.questions[0][1].set_result(AuthenticateResponse(principal="ann"))
    assert (await slow).principal.name == "ann"
    assert frontend.known_header("Bearer a") is None
    node.questions[1][1].set_exception(Unauthenticated())
    with pytest.raises(Unauthenticated):
        await late


async def test_a_remembered_answer_is_forgotten_after_half_a_second(
    frontend: RemoteAuthenticator, node: AskedNode, clock: ManualClock
) -> None:
    first = ask(frontend)
    await settled()
    node.questions[0][1].set_result(AuthenticateResponse(principal="ann"))
    await first
    clock.move(REMEMBERED_MS - 1)
    assert frontend.known_header("Bearer a") is not None
    clock.move(1)
    assert frontend.known_header("Bearer a") is None


class CertificateCall:
    """What gRPC says about a call with this client certificate."""

    def __init__(self, issued: Issued) -> None:
        self._issued = issued

    def invocation_metadata(self) -> Any:
        return ()

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_common_name": [b"client"], "x509_pem_cert": [self._issued.cert_pem]}


async def test_a_stream_ends_when_the_certificate_of_its_caller_expires(node: AskedNode) -> None:
    issued = Authority().issue_client()
    expires_ms = int(issued.certificate.not_valid_after_utc.timestamp()) * 1_000
    clock = ManualClock(wall_ms=expires_ms - 2 * REMEMBERED_MS)
    frontend = RemoteAuthenticator(clock, node.ask)
    asking = asyncio.create_task(frontend.identify(CertificateCall(issued)))
    await settled()
    node.questions[0][1].set_result(AuthenticateResponse(principal="cert:client", credential="certificate"))
    stream = frontend.open_stream(await asking)
    running = asyncio.create_task(frontend.run())
    await settled()
    clock.move(REMEMBERED_MS)
    await settled()
    assert not stream.revoked.done()
    clock.move(REMEMBERED_MS)
    await settled()
    assert stream.revoked.done()
    with pytest.raises(Unauthenticated):
        await frontend.identify(CertificateCall(issued))
    running.cancel()
