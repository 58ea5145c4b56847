"""A credential that is revoked or expires ends what its owner still has open: streams, long polls and event streams, over gRPC,
over HTTP and through a frontend."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from liveness.cli.http_listener import GrpcServer, bind_http, start_http
from liveness.clock import SystemClock
from liveness.domain.errors import Unauthenticated
from liveness.frontend.app import Frontend
from liveness.security.forwarded_callers import ForwardedCallers
from liveness.security.principal import Caller, Principal
from liveness.server.access import MethodGuard
from liveness.v1 import activity_pb2, service_pb2
from liveness.v1 import token_pb2 as pb
from tests.integration.http.http_client import JSON, ServerEvent
from tests.integration.http.http_client import Client as HttpClient
from tests.integration.security.auth_harness import AuthHarness, Client
from tests.integration.security.test_key_ownership import NAMESPACE, beat
from tests.integration.security.test_nodes_and_frontends import frontend, key_on, nodes
from tests.integration.security.test_tokens import revoke

__all__ = ["frontend", "nodes"]

GRANTS = (f"worker:{NAMESPACE}", f"reader:{NAMESPACE}")
LIMIT_S = 30
"""A poll waits a minute, so that one that ends earlier was ended."""
REASON = "UNAUTHENTICATED"


@asynccontextmanager
async def http_of(server: GrpcServer) -> AsyncIterator[HttpClient]:
    listen_address = bind_http("127.0.0.1:0")
    assert listen_address is not None
    http_server = await start_http(
        server,
        listen_address,
        SystemClock(),
        http="127.0.0.1:0",
        hosts=(),
        metrics=lambda: (b"", "text/plain"),
        asks_callers=True,
    )
    try:
        yield HttpClient(int(http_server.url.rstrip("/").rpartition(":")[2]))
    finally:
        await http_server.stop()


class OpenCalls:
    """Everything that a caller can leave open, each in a task that returns the reason of its end."""

    def __init__(self, channel: Any, http: HttpClient) -> None:
        self._channel = channel
        self._http = http
        self._opened = 0
        self.tasks: dict[str, asyncio.Task[str]] = {}

    async def open(self, name: str, token: str, worker: str, session: str = "") -> None:
        """`session`: the credential of the HTTP calls, if it is another one."""
        client = Client(self._channel, token)
        await beat(client, worker, lease_ms=300_000)
        bearer = {"Authorization": f"Bearer {session or token}"}
        opening = {
            "watch": self._watch(client),
            "attach": self._attach(client),
            "poll": self._poll(client, worker),
            "HTTP poll": self._http_poll(worker, bearer),
            "HTTP events": self._http_events(bearer),
        }
        for kind, call in opening.items():
            self.tasks[f"{name}: {kind}"] = asyncio.create_task(call)

    async def wait_open(self, polls: int, *servers: Any) -> None:
        """Return when all streams have begun and all polls wait."""
        streams = sum("poll" not in name for name in self.tasks)
        async with asyncio.timeout(LIMIT_S):
            while (
                self._opened < streams
                or sum(server.matching.waiting_poll_count() for server in servers) < polls
            ):
                await asyncio.sleep(0.01)
                for task in self.tasks.values():
                    assert not task.done(), self.tasks

    async def reasons(self, name: str) -> dict[str, str]:
        """Why the calls of a caller have ended."""
        ended = {kind: task for kind, task in self.tasks.items() if kind.startswith(f"{name}:")}
        async with asyncio.timeout(LIMIT_S):
            return {kind: await task for kind, task in ended.items()}

    def is_open(self, name: str) -> bool:
        return not any(task.done() for kind, task in self.tasks.items() if kind.startswith(f"{name}:"))

    async def close(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)

    async def _watch(self, client: Client) -> str:
        stream = client.liveness.WatchEvents(service_pb2.WatchEventsRequest(namespace=NAMESPACE))
        return await self._end_of(stream)

    async def _attach(self, client: Client) -> str:
        stream = client.liveness.Attach()
        await stream.write(service_pb2.AttachRequest(ping=service_pb2.AttachRequest.Ping(number=1)))
        return await self._end_of(stream)

    async def _end_of(self, stream: Any) -> str:
        try:
            await stream.read()
            self._opened += 1
            while await stream.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return "OK"

    async def _poll(self, client: Client, worker: str) -> str:
        request = activity_pb2.PollActivityRequest(
            namespace=NAMESPACE,
            worker_instance_key=worker,
            session_id="s1",
            task_queue="q",
            wait=Duration(seconds=60),
        )
        try:
            await client.activities.PollActivity(request)
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return "OK"

    async def _http_poll(self, worker: str, bearer: dict[str, str]) -> str:
        body = {"worker_instance_key": worker, "session_id": "s1", "task_queue": "q", "wait": "60s"}
        answer = await self._http.ask(
            "POST",
            f"/v1/namespaces/{NAMESPACE}/activities/poll",
            JSON | bearer,
            json.dumps(body).encode(),
        )
        return str(answer.error["reason"]) if answer.code == 401 else f"{answer.code} {answer.body!r}"

    async def _http_events(self, bearer: dict[str, str]) -> str:
        async with self._http.connect() as connection:
            await connection.send("GET", f"/v1/namespaces/{NAMESPACE}/events", bearer)
            code, _ = await connection.head()
            assert code == 200
            last = None
            async for event in connection.events():
                if last is None:
                    self._opened += 1
                last = event
            if isinstance(last, ServerEvent) and last.name == "refusal":
                return str(last.json()["error"]["reason"])
            return f"ended after {last}"


async def test_a_node_ends_the_streams_and_long_polls_of_a_credential_that_is_not_valid_any_more(
    auth: AuthHarness,
) -> None:
    """The node reads its tokens at an interval and looks at what is open each time; here the clock makes that happen."""
    revoked = await auth.create_token("revoked", *GRANTS)
    short = await auth.create_token("short-lived", *GRANTS, lifetime=Duration(seconds=60))
    person = await auth.create_token("person", *GRANTS)
    session = await auth.client(person.secret).admin.CreateSession(pb.CreateSessionRequest())
    kept = await auth.create_token("kept", *GRANTS)
    async with AsyncExitStack() as stack:
        calls = OpenCalls(auth.channel, await stack.enter_async_context(http_of(auth.server)))
        stack.push_async_callback(calls.close)
        await calls.open("revoked", revoked.secret, "w1")
        await calls.open("short-lived", short.secret, "w2")
        await calls.open("person", person.secret, "w3", session=session.secret)
        await calls.open("kept", kept.secret, "w4")
        await calls.wait_open(8, auth.server)

        await revoke(auth, revoked.token.token_id)
        assert set((await calls.reasons("revoked")).values()) == {REASON}

        await auth.client(session.secret).admin.EndSession(pb.EndSessionRequest())
        for kind, task in calls.tasks.items():
            if kind.startswith("person: HTTP"):
                assert await asyncio.wait_for(task, LIMIT_S) == REASON, kind
        assert not calls.tasks["person: poll"].done()

        sleepers = len(auth.clock._sleepers)
        running = asyncio.create_task(auth.tokens.run())
        while len(auth.clock._sleepers) == sleepers:
            await asyncio.sleep(0)
        auth.clock.jump_wall(60_000)
        assert calls.is_open("short-lived")
        auth.clock.move(500)
        assert set((await calls.reasons("short-lived")).values()) == {REASON}
        running.cancel()
        assert calls.is_open("kept")


async def test_a_frontend_ends_them_as_well(nodes: list[AuthHarness], frontend: Frontend) -> None:
    """Whichever node owns the worker that polls."""
    first, second = nodes
    created = [await first.create_token(name, *GRANTS) for name in ("here", "there", "kept")]
    for node in nodes:
        await node.tokens.refresh()
    async with AsyncExitStack() as stack:
        channel: Any = await stack.enter_async_context(grpc.aio.insecure_channel(frontend.address))
        await channel.channel_ready()
        calls = OpenCalls(channel, await stack.enter_async_context(http_of(frontend)))
        stack.push_async_callback(calls.close)
        await calls.open("here", created[0].secret, key_on(first))
        await calls.open("there", created[1].secret, key_on(second))
        await calls.open("kept", created[2].secret, key_on(second, "k"))
        await calls.wait_open(6, *(node.server for node in nodes))
        for token in created[:2]:
            await revoke(first, token.token.token_id)
        await second.tokens.refresh()
        for name in ("here", "there"):
            assert set((await calls.reasons(name)).values()) == {REASON}
        assert calls.is_open("kept")
        while sum(node.server.matching.waiting_poll_count() for node in nodes) > 2:
            await asyncio.sleep(0.01)  # the owners give up the polls that the frontend ended


async def test_a_frontend_ends_streams_of_methods_that_only_newer_nodes_know(
    nodes: list[AuthHarness], frontend: Frontend
) -> None:
    async def watch(_: Any, context: Any) -> AsyncIterator[bytes]:
        yield b"first"
        await asyncio.Event().wait()

    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "WatchTomorrow": grpc.unary_stream_rpc_method_handler(watch)
    }
    for node in nodes:
        node.server._cluster_grpc.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("liveness.v1.AdminService", handlers),)
        )
    created = await nodes[0].create_token("ann", *GRANTS)
    await nodes[1].tokens.refresh()
    async with grpc.aio.insecure_channel(frontend.address) as channel:
        await channel.channel_ready()
        call: Any = channel.unary_stream("/liveness.v1.AdminService/WatchTomorrow")
        stream = call(b"", metadata=(("authorization", f"Bearer {created.secret}"),))
        assert await stream.read() == b"first"
        await revoke(nodes[0], created.token.token_id)
        await nodes[1].tokens.refresh()
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await asyncio.wait_for(stream.read(), LIMIT_S)
        assert ended.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_stream_that_always_has_a_message_ends_too() -> None:
    """The next message is there before anybody could notice that the credential is not valid any more."""
    registry = ForwardedCallers(SystemClock())
    method = service_pb2.DESCRIPTOR.services_by_name["LivenessService"].methods_by_name["WatchEvents"]
    guard = MethodGuard(registry, method)

    async def endless() -> AsyncIterator[int]:
        for number in range(1_000):
            yield number

    messages = guard.until_revoked(endless(), Caller(Principal("ann", ())))
    assert [await anext(messages) for _ in range(3)] == [0, 1, 2]
    [stream] = registry.open_streams()
    stream.revoked.set_result(None)
    with pytest.raises(Unauthenticated):
        await anext(messages)
