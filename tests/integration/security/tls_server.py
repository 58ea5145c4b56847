"""A server with TLS on gRPC and HTTP, in this process, on the real clock."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from liveness.app import Server
from liveness.cli.http_listener import bind_http, start_http
from liveness.clock import SystemClock
from liveness.config.settings import Settings
from liveness.http.server import HttpServer
from liveness.v1.service_pb2 import RecordWorkerHeartbeatRequest
from liveness.v1.service_pb2_grpc import LivenessServiceStub
from liveness.v1.worker_pb2 import WorkerHeartbeat

# Each channel has its own connection, as each process has.
OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
CALL_TIMEOUT_S = 20.0


@dataclass(slots=True)
class TlsServer:
    server: Server
    http_server: HttpServer

    @property
    def address(self) -> str:
        return self.server.address

    @property
    def http_port(self) -> int:
        return int(self.http_server.url.rstrip("/").rpartition(":")[2])


@asynccontextmanager
async def tls_server(folder: Path, **settings: Any) -> AsyncIterator[TlsServer]:
    values = {"shards": 2, "commit_interval_ms": 0.0, "shutdown_timeout_s": 2.0, **settings}
    server = Server(Settings(db=f"sqlite:///{folder}/liveness.db", listen="127.0.0.1:0", **values))
    listen_address = bind_http("127.0.0.1:0")
    assert listen_address is not None
    async with server:
        http_server = await start_http(
            server, listen_address, SystemClock(), http="127.0.0.1:0", hosts=(), metrics=server.metrics
        )
        try:
            yield TlsServer(server, http_server)
        finally:
            await http_server.stop()


def connect(
    address: str, ca_pem: bytes | None, cert_pem: bytes | None = None, key_pem: bytes | None = None
) -> Any:
    """Open a channel; in plain text without a CA."""
    if ca_pem is None:
        return grpc.aio.insecure_channel(address, options=OWN_CONNECTION)
    credentials = grpc.ssl_channel_credentials(ca_pem, key_pem, cert_pem)
    return grpc.aio.secure_channel(address, credentials, options=OWN_CONNECTION)


async def heartbeat(channel: Any, key: str = "w-1") -> None:
    request = RecordWorkerHeartbeatRequest(
        namespace="default", heartbeat=WorkerHeartbeat(worker_instance_key=key)
    )
    stub: Any = LivenessServiceStub(channel)
    await stub.RecordWorkerHeartbeat(request, timeout=CALL_TIMEOUT_S)


async def refusal(channel: Any) -> str:
    """Return why a heartbeat failed."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await heartbeat(channel)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    return caught.value.details() or ""


def client_context(ca_pem: bytes) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=ca_pem.decode())


async def http_get(port: int, path: str, context: ssl.SSLContext | None) -> tuple[int, bytes]:
    """Make one request on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read()
    finally:
        writer.close()
    return int(answer.split(b" ", 2)[1]), answer


async def peer_certificate(port: int, ca_pem: bytes) -> bytes:
    """Return the certificate, in DER format, that the listener shows on a new connection."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_context(ca_pem))
    try:
        certificate: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return certificate
    finally:
        writer.close()
