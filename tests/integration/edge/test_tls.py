"""TLS of the edge: certificates of the server and of clients, and their replacement."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives import serialization

from tests.certificates import Authority, Issued
from tests.integration.edge.edge_server import EdgeServer, liveness_edge


@contextmanager
def secured(authority: Authority, client_ca: bytes | None, client_auth: str) -> Iterator[EdgeServer]:
    server, issued = EdgeServer(handshake_timeout_ms=2_000), authority.issue_server()
    server.start(tls=(issued.cert_pem, issued.key_pem(), client_ca, client_auth))
    yield server
    server.stop()


def channel(server: EdgeServer, authority: Authority, client: Issued | None = None) -> Any:
    credentials = grpc.ssl_channel_credentials(
        authority.cert_pem, *((client.key_pem(), client.cert_pem) if client else (None, None))
    )
    options = [("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.secure_channel(server.address, credentials, options=options)


async def seen_certificate(server: EdgeServer, authority: Authority, client: Issued | None) -> bytes | None:
    async with channel(server, authority, client) as connected:
        waiting = connected.unary_unary("/t.T/Hold")(b"", timeout=20)
        event = await server.event(liveness_edge.CALL)
        server.edge.answer([(event[1], b"x" * 500_000)])
        assert len(await waiting) == 500_000
    certificate: bytes | None = event[3].certificate
    return certificate


async def shown_certificate(server: EdgeServer, authority: Authority) -> bytes | None:
    context = ssl.create_default_context(cadata=authority.cert_pem.decode())
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
    shown: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return shown


async def is_refused(server: EdgeServer, authority: Authority, client: Issued | None) -> bool:
    failed = server.count("handshakes_failed")
    async with channel(server, authority, client) as connected:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await connected.unary_unary("/t.T/Echo")(b"", timeout=20)
    await server.until(lambda: server.count("handshakes_failed") > failed)
    return caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_the_certificate_of_a_client_is_shown_to_python() -> None:
    authority, stranger = Authority(), Authority("another")
    client = authority.issue_client("worker")
    der = client.certificate.public_bytes(serialization.Encoding.DER)
    with secured(authority, authority.cert_pem, "optional") as server:
        assert await seen_certificate(server, authority, client) == der
        assert await seen_certificate(server, authority, None) is None
        assert await is_refused(server, authority, stranger.issue_client("worker"))
    with secured(authority, authority.cert_pem, "required") as server:
        assert await seen_certificate(server, authority, client) == der
        assert await is_refused(server, authority, None)
    with secured(authority, None, "none") as server:
        assert await seen_certificate(server, authority, client) is None


async def test_new_connections_get_the_new_certificate_and_old_ones_stay() -> None:
    authority = Authority()
    with secured(authority, None, "none") as server:
        async with channel(server, authority) as old:
            assert await old.unary_unary("/t.T/Echo")(b"1", timeout=20) == b"1"
            replacement = authority.issue_server()
            server.edge.set_tls(replacement.cert_pem, replacement.key_pem(), None, "none")
            with pytest.raises(ValueError, match="certificate"):
                server.edge.set_tls(b"no certificate", replacement.key_pem(), None, "none")
            assert await old.unary_unary("/t.T/Echo")(b"2", timeout=20) == b"2"
            async with channel(server, authority) as new:
                assert await new.unary_unary("/t.T/Echo")(b"3", timeout=20) == b"3"
        assert server.count("connections") == 2
        assert await shown_certificate(server, authority) == replacement.certificate.public_bytes(
            serialization.Encoding.DER
        )


async def test_keys_and_authorities_that_cannot_be_used_are_refused_in_words() -> None:
    authority, other = Authority(), Authority("another")
    issued = authority.issue_server()
    edge = liveness_edge.Edge()
    for arguments, why in (
        ((issued.cert_pem, other.issue_server().key_pem(), None, "none"), "certificate and its key"),
        ((issued.cert_pem, b"", None, "none"), "the key"),
        ((issued.cert_pem, issued.key_pem(), b"", "required"), "CA of the clients"),
        ((issued.cert_pem, issued.key_pem(), None, "required"), "no CA"),
        ((issued.cert_pem, issued.key_pem(), None, "sometimes"), "none, optional or required"),
    ):
        with pytest.raises(ValueError, match=why):
            edge.set_tls(*arguments)


async def test_a_client_without_tls_is_refused() -> None:
    with secured(Authority(), None, "none") as server:
        async with server.channel() as plain:
            with pytest.raises(grpc.aio.AioRpcError):
                await plain.unary_unary("/t.T/Echo")(b"", timeout=20)
        await server.until(lambda: server.count("handshakes_failed") >= 1)
