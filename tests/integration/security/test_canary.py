"""A token appears nowhere, whatever it is used for: in no log, answer, error, event, metric, trace, table, file or backup."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import grpc
import pytest
import structlog
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

from liveness.cli.http_listener import bind_http, start_http
from liveness.doors.noetl.paths import noetl_door
from liveness.http.session_cookie import NAME as SESSION_COOKIE
from liveness.store.backup import create_backup
from tests.integration.http.http_client import JSON, Client
from tests.integration.security.auth_harness import AuthHarness
from tests.integration.security.test_access_matrix import METHODS, OWN, request_about
from tests.integration.security.test_access_matrix_http import (
    DOOR,
    HttpRequest,
    door_requests,
    requests,
    worker_path_requests,
)

SAMPLED = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
HIDDEN_IN = (
    "Bearer {}",
    "bearer {}",
    "Bearer  {}",
    "Basic {}",
    "{}",
    "Bearer x{}",
    "Bearer {}x",
    "Bearer Bearer {}",
)
"""Headers in which a person may put it by mistake."""
SECONDS_MAX = 60


class Spans(TraceServiceServicer):
    """A collector that keeps what it receives, as bytes."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.has_any = Event()

    def Export(self, request: ExportTraceServiceRequest, context: Any) -> ExportTraceServiceResponse:
        self.received.append(request.SerializeToString())
        self.has_any.set()
        return ExportTraceServiceResponse()


@contextmanager
def collecting() -> Iterator[tuple[Spans, str]]:
    spans, server = Spans(), grpc.server(ThreadPoolExecutor(1))
    add_TraceServiceServicer_to_server(spans, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield spans, f"http://127.0.0.1:{port}"
    finally:
        server.stop(None)


async def call(channel: grpc.aio.Channel, method: MethodDescriptor, authorization: str) -> str:
    """Everything that the caller of a method is told."""
    request = request_about(method, OWN)
    metadata = (("authorization", authorization), ("traceparent", SAMPLED))
    path = f"/{method.containing_service.full_name}/{method.name}"
    serialize, parse = type(request).SerializeToString, GetMessageClass(method.output_type).FromString
    options: dict[str, Any] = {"metadata": metadata, "timeout": 10}
    stream: Any
    try:
        if method.client_streaming:
            stream = channel.stream_stream(path, serialize, parse)(**options)
            await stream.write(request)
            answer = await stream.read()
            stream.cancel()
        elif method.server_streaming:
            stream = channel.unary_stream(path, serialize, parse)(request, **options)
            answer = await stream.read()
            stream.cancel()
        else:
            answer = await channel.unary_unary(path, serialize, parse)(request, **options)
    except grpc.aio.AioRpcError as error:
        return f"{error.details()} {error.trailing_metadata()}"
    return str(answer)


async def ask(client: Client, request: HttpRequest, headers: dict[str, str]) -> str:
    """The same over HTTP; of a stream of events, the head."""
    async with client.connect() as connection:
        await connection.send(request.verb, request.target, headers, request.body)
        code, answered = await connection.head()
        if "content-length" not in answered:
            return f"{code} {answered}"
        return f"{answered} {await connection.reader.readexactly(int(answered['content-length']))!r}"


async def test_a_token_appears_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    database = tmp_path / "liveness.db"
    with collecting() as (spans, url), structlog.testing.capture_logs() as logs:
        harness = await AuthHarness(f"sqlite:///{database}").start(traces=url)
        listen_address = bind_http("127.0.0.1:0")
        assert listen_address is not None
        server = harness.server
        http = await start_http(
            server, listen_address, harness.clock, http="127.0.0.1:0", hosts=(), metrics=server.metrics,
            asks_callers=True, doors=[noetl_door(DOOR, harness.clock)],
        )  # fmt: skip
        client = Client(listen_address.port)
        token: str = (await harness.create_token("canary", "admin:*")).secret
        told: list[str] = []
        for method in METHODS:
            told.append(await call(harness.channel, method, f"Bearer {token}"))
            told.append(await call(harness.channel, method, f"Bearer {token}x"))
        everything = [request for _, namespace, request in requests() if namespace == OWN]
        everything += [request for request, _ in door_requests("pool")]
        everything += [request for request, namespace, _ in worker_path_requests() if namespace == OWN]
        everything.append(HttpRequest("GET", "/metrics", b""))
        for request in everything:
            headers = {"Authorization": f"Bearer {token}", "traceparent": SAMPLED, **JSON}
            told.append(await ask(client, request, headers))
        listing = HttpRequest("GET", f"/v1/namespaces/{OWN}/workers", b"")
        for hidden in HIDDEN_IN:
            told.append(await call(harness.channel, METHODS[0], hidden.format(token)))
            told.append(await ask(client, listing, {"Authorization": hidden.format(token)}))
        told.append(await ask(client, listing, {"Cookie": f"{SESSION_COOKIE}={token}"}))
        for body in ({"token": token}, {"token": f" {token}"}, {"token": [token]}, {token: ""}):
            sign_in = HttpRequest("POST", "/auth/sign-in", json.dumps(body).encode())
            told.append(await ask(client, sign_in, dict(JSON)))
        await server.take_sample()
        metrics, _ = server.metrics()
        assert await asyncio.to_thread(spans.has_any.wait, SECONDS_MAX)
        http.stop_accepting()
        tables = await harness.dump()
        await asyncio.to_thread(create_backup, database, tmp_path / "backup.db", lambda *_: None)
        await harness.stop()
        await http.stop()
    secret = token.rpartition("_")[2]
    # The id is public: it shows that what is searched has what it should have.
    assert all(token.split("_")[1] in str(each) for each in (logs, told, tables))
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert {"liveness.db", "backup.db"} <= files.keys()
    found = {
        "logs": logs,
        "answers": told,
        "metrics": metrics,
        "tables": tables,
        "spans": spans.received,
        **files,
    }
    for name, content in found.items():
        assert secret not in str(content), name
        assert secret.encode() not in (content if isinstance(content, bytes) else b""), name
