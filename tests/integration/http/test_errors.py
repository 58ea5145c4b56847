"""Errors over HTTP: the HTTP code, the gRPC status, a reason for machines, and all details."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from liveness.clock import SystemClock
from liveness.domain.errors import LivenessError
from liveness.http.errors import HTTP_CODES
from liveness.http.listen_address import bind_address
from liveness.http.server import HttpServer
from liveness.rpc.status import code_of, status_of
from liveness.rpc_details import DETAILS_KEY
from tests.integration.http.http_client import JSON, Client
from tests.integration.http.http_harness import HttpHarness

HEARTBEAT = "/v1/namespaces/orders/workers/w/heartbeat"


def test_every_grpc_code_has_an_http_code() -> None:
    assert set(HTTP_CODES) == set(grpc.StatusCode) - {grpc.StatusCode.OK}
    assert all(400 <= code <= 599 for code in HTTP_CODES.values())


async def test_an_unknown_worker_is_404_with_reason_and_fields(client: Client) -> None:
    answer = await client.ask("GET", "/v1/namespaces/orders/workers/unknown")
    assert (answer.code, answer.headers["content-type"]) == (404, "application/json")
    assert answer.json() == {
        "error": {
            "code": 404,
            "status": "NOT_FOUND",
            "message": "There is no worker unknown in namespace orders.",
            "reason": "WORKER_NOT_FOUND",
            "details": [
                {
                    "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                    "reason": "WORKER_NOT_FOUND",
                    "domain": "liveness",
                    "metadata": {"worker": "unknown", "namespace": "orders"},
                }
            ],
        }
    }


async def test_a_refused_field_is_named(client: Client) -> None:
    answer = await client.ask("POST", HEARTBEAT, JSON, b'{"lease_duration": "0s"}')
    assert (answer.code, answer.error["reason"]) == (400, "INVALID_FIELD")
    (violation,) = answer.error["details"][1]["field_violations"]
    assert violation["field"] == "heartbeat.lease_duration"


async def test_a_failed_precondition_is_400(http_harness: HttpHarness) -> None:
    await http_harness.harness.beat("w", session_id="s", sequence=5)
    answer = await http_harness.client.ask("POST", HEARTBEAT, JSON, b'{"session_id": "s", "sequence": 4}')
    assert (answer.code, answer.error["status"]) == (400, "FAILED_PRECONDITION")
    assert answer.error["reason"] == "STALE_HEARTBEAT"


async def test_a_rate_limit_is_429_with_a_retry_delay(http_harness: HttpHarness) -> None:
    await http_harness.harness.configure(worker_heartbeat_rate=0.1)
    await http_harness.harness.beat("w", session_id="s", sequence=1)
    refused = None
    for sequence in range(2, 20):
        beat = json.dumps({"session_id": "s", "sequence": sequence}).encode()
        answer = await http_harness.client.ask("POST", HEARTBEAT, JSON, beat)
        if answer.code != 200:
            refused = answer
            break
    assert refused is not None
    assert (refused.code, refused.error["reason"]) == (429, "RATE_LIMITED")
    seconds = float(refused.error["details"][1]["retry_delay"].rstrip("s"))
    assert seconds <= int(refused.headers["retry-after"]) < seconds + 1


async def test_an_item_of_a_batch_is_refused_alone(http_harness: HttpHarness) -> None:
    beats = {"heartbeats": [{"worker_instance_key": "a"}, {"worker_instance_key": ""}]}
    good, bad = (await http_harness.client.post("/v1/namespaces/orders/heartbeats", beats))["items"]
    assert good["result"]["outcome"] == "HEARTBEAT_OUTCOME_REGISTERED"
    assert bad["status"]["details"][0]["reason"] == "INVALID_FIELD"


@pytest.mark.parametrize(
    ("verb", "target", "code", "reason"),
    [
        ("GET", "/nowhere", 404, "PATH_NOT_FOUND"),
        ("GET", "/v1/namespaces/orders/nothing", 404, "PATH_NOT_FOUND"),
        ("GET", "/metrics", 404, "PATH_NOT_FOUND"),
        ("DELETE", "/v1/namespaces/orders/workers/w", 405, "METHOD_NOT_ALLOWED"),
        ("OPTIONS", "/v1/namespaces/orders/workers/w", 405, "METHOD_NOT_ALLOWED"),
        ("POST", "/", 405, "METHOD_NOT_ALLOWED"),
        ("HEAD", "/v1/events", 405, ""),
        ("GET", "/v1/namespaces/%FF/workers", 400, "INVALID_FIELD"),
    ],
)
async def test_errors_of_the_http_layer_have_the_same_form(
    client: Client, verb: str, target: str, code: int, reason: str
) -> None:
    answer = await client.ask(verb, target, JSON)
    assert answer.code == code
    if verb != "HEAD":
        assert (answer.error["code"], answer.error["reason"]) == (code, reason)
        assert answer.error["details"][0]["domain"] == "liveness"
    assert ("allow" in answer.headers) == (code == 405)


async def test_a_wrong_method_lists_the_allowed_ones(client: Client) -> None:
    answer = await client.ask("PUT", "/v1/namespaces/orders/config", JSON)
    assert answer.headers["allow"] == "GET, PATCH"


async def test_a_call_that_exceeds_its_timeout_is_504(http_harness: HttpHarness) -> None:
    await http_harness.harness.beat("w", task_queue="q")
    poll = json.dumps({"worker_instance_key": "w", "wait": "60s"}).encode()
    target = "/v1/namespaces/orders/activities/poll"
    answer = await http_harness.client.ask("POST", target, {**JSON, "X-Timeout": "50ms"}, poll)
    assert (answer.code, answer.error["status"]) == (504, "DEADLINE_EXCEEDED")


@pytest.mark.parametrize("text", ["5", "0s", "-1s", "5h", "11m", "1e3s", "", "s"])
async def test_an_invalid_timeout_header_is_refused(client: Client, text: str) -> None:
    answer = await client.ask("GET", "/v1/server", {"X-Timeout": text})
    assert (answer.code, answer.error["reason"]) == (400, "INVALID_FIELD")
    assert "X-Timeout" in answer.error["message"]


class RefusingNode(grpc.GenericRpcHandler):
    """A node that refuses every call with a given error, and records the metadata."""

    def __init__(self) -> None:
        self.error: LivenessError | grpc.StatusCode = grpc.StatusCode.INTERNAL
        self.metadata: dict[str, Any] = {}
        self.time_s = 0.0
        self.cancelled = asyncio.Event()
        self.waits = False

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        async def refuse(request: bytes, context: Any) -> None:
            self.metadata = dict(details.invocation_metadata)
            self.time_s = context.time_remaining()
            if self.waits:
                try:
                    await asyncio.Event().wait()
                finally:
                    self.cancelled.set()
            if isinstance(self.error, LivenessError):
                trailers = ((DETAILS_KEY, status_of(self.error).SerializeToString()),)
                await context.abort(code_of(self.error), str(self.error), trailers)
            await context.abort(self.error, "refused")

        return grpc.unary_unary_rpc_method_handler(refuse)


@pytest.fixture
async def node() -> AsyncIterator[tuple[RefusingNode, Client]]:
    handler = RefusingNode()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    listen_address = bind_address("127.0.0.1", 0)
    http_server = HttpServer(f"127.0.0.1:{port}", listen_address, SystemClock())
    await http_server.start()
    yield handler, Client(listen_address.port)
    await server.stop(None)
    await http_server.stop()


@pytest.mark.parametrize("code", HTTP_CODES, ids=lambda code: code.name)
async def test_each_grpc_code_becomes_its_http_code(
    node: tuple[RefusingNode, Client], code: grpc.StatusCode
) -> None:
    handler, client = node
    handler.error = code
    answer = await client.ask("GET", "/v1/server")
    assert (answer.code, answer.error["status"]) == (HTTP_CODES[code], code.name)
    assert (answer.error["message"], answer.error["reason"], answer.error["details"]) == ("refused", "", [])


async def test_an_unreachable_node_is_503() -> None:
    unreachable = bind_address("127.0.0.1", 0)  # bound, but not listening
    listen_address = bind_address("127.0.0.1", 0)
    http_server = HttpServer(f"127.0.0.1:{unreachable.port}", listen_address, SystemClock())
    await http_server.start()
    try:
        answer = await Client(listen_address.port).ask("GET", "/v1/server")
        assert (answer.code, answer.error["status"]) == (503, "UNAVAILABLE")
        assert (await Client(listen_address.port).ask("GET", "/readyz")).code == 503
        assert (await Client(listen_address.port).ask("GET", "/healthz")).code == 200
    finally:
        await http_server.stop()
        unreachable.socket.close()


async def test_deadline_credential_and_trace_headers_are_forwarded(node: tuple[RefusingNode, Client]) -> None:
    handler, client = node
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=b"}
    await client.ask("GET", "/v1/server", {**trace, "X-Timeout": "2m", "Cookie": "c", "Authorization": "x"})
    assert {**trace, "authorization": "x"}.items() <= handler.metadata.items()
    assert "cookie" not in handler.metadata
    assert 35 < handler.time_s < 125
    await client.ask("GET", "/v1/server", {"traceparent": "\xe4"})
    assert "traceparent" not in handler.metadata
    assert 15 < handler.time_s < 35


async def test_the_deadline_of_a_poll_exceeds_its_wait(
    node: tuple[RefusingNode, Client],
) -> None:
    handler, client = node
    await client.ask("POST", "/v1/namespaces/orders/activities/poll", JSON, b'{"wait": "60s"}')
    assert 60 < handler.time_s < 95


async def test_a_disconnected_client_cancels_the_call(node: tuple[RefusingNode, Client]) -> None:
    handler, client = node
    handler.waits = True
    async with client.connect() as http_connection:
        await http_connection.send("GET", "/v1/server")
        while not handler.metadata:
            await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await handler.cancelled.wait()
