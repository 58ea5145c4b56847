"""TLS on the public listeners: who gets in, and how certificates are replaced while calls go on."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog

from liveness.clock import SystemClock
from liveness.config.settings import Settings
from liveness.security.tls_settings import TlsFilesUnusable, make_listener_tls
from tests.certificates import Authority, TlsFolder, make_tls_folder, replace
from tests.integration.security.tls_server import (
    client_context,
    connect,
    heartbeat,
    http_get,
    peer_certificate,
    refusal,
    tls_server,
)

ROTATIONS = 20
WORKERS_PATH = "/v1/namespaces/default/workers"


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture
def files(tmp_path: Path, authority: Authority) -> TlsFolder:
    return make_tls_folder(tmp_path / "tls", authority)


async def test_heartbeats_and_http_requests_over_tls(
    tmp_path: Path, files: TlsFolder, authority: Authority
) -> None:
    async with tls_server(tmp_path, **files.settings) as server:
        async with connect(server.address, authority.cert_pem) as channel:
            await heartbeat(channel)
        assert server.http_server.url.startswith("https://127.0.0.1:")
        status, answer = await http_get(server.http_port, WORKERS_PATH, client_context(authority.cert_pem))
        assert status == 200
        assert b'"w-1"' in answer
        status, _ = await http_get(server.http_port, "/readyz", client_context(authority.cert_pem))
        assert status == 200


async def test_plain_text_to_a_tls_listener_fails(tmp_path: Path, files: TlsFolder) -> None:
    async with tls_server(tmp_path, **files.settings) as server:
        async with connect(server.address, None) as channel:
            assert "Socket closed" in await refusal(channel)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.http_port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"HTTP/1.1 200" not in await reader.read()
        writer.close()


async def test_a_server_of_another_authority_is_refused(tmp_path: Path, files: TlsFolder) -> None:
    other = Authority("other CA")
    async with tls_server(tmp_path, **files.settings) as server:
        async with connect(server.address, other.cert_pem) as channel:
            assert "CERTIFICATE_VERIFY_FAILED" in await refusal(channel)
        with pytest.raises(ssl.SSLCertVerificationError):
            await http_get(server.http_port, "/healthz", client_context(other.cert_pem))


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
async def test_tls_1_1_is_refused_and_tls_1_2_accepted(
    tmp_path: Path, files: TlsFolder, authority: Authority
) -> None:
    async with tls_server(tmp_path, **files.settings) as server:
        for port in (int(server.address.rpartition(":")[2]), server.http_port):
            old = client_context(authority.cert_pem)
            old.set_ciphers("ALL:@SECLEVEL=0")  # without it, the client itself would refuse the old version
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.open_connection("127.0.0.1", port, ssl=old)
            good = client_context(authority.cert_pem)
            good.set_alpn_protocols(["h2", "http/1.1"])
            good.maximum_version = ssl.TLSVersion.TLSv1_2
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=good)
            assert writer.get_extra_info("ssl_object").version() == "TLSv1.2"
            writer.close()


async def test_required_client_certificates(tmp_path: Path, files: TlsFolder, authority: Authority) -> None:
    clients = Authority("client CA")
    client, stranger = clients.issue_client(), authority.issue_client("stranger")
    settings = {
        "tls_client_ca_file": str(clients.write(tmp_path / "clients.pem")),
        "tls_client_auth": "required",
    }
    async with tls_server(tmp_path, **files.settings, **settings) as server:
        async with connect(server.address, authority.cert_pem, client.cert_pem, client.key_pem()) as channel:
            await heartbeat(channel)
        async with connect(server.address, authority.cert_pem) as channel:
            await refusal(channel)
        async with connect(
            server.address, authority.cert_pem, stranger.cert_pem, stranger.key_pem()
        ) as channel:
            await refusal(channel)
        with pytest.raises((ssl.SSLError, ConnectionError, IndexError)):
            await http_get(server.http_port, "/healthz", client_context(authority.cert_pem))
        context = client_context(authority.cert_pem)
        client.write(tmp_path / "client.pem", tmp_path / "client.key")
        context.load_cert_chain(tmp_path / "client.pem", tmp_path / "client.key")
        status, _ = await http_get(server.http_port, WORKERS_PATH, context)
        assert status == 200
        # The server reaches its own listener, although nobody issued a certificate to it.
        await eventually(lambda: server.server.node.receive_progress.is_measuring)
        await probe_answered(server.server)


async def test_optional_client_certificates(tmp_path: Path, files: TlsFolder, authority: Authority) -> None:
    clients = Authority("client CA")
    settings = {"tls_client_ca_file": str(clients.write(tmp_path / "clients.pem"))}
    async with tls_server(tmp_path, **files.settings, **settings) as server:
        async with connect(server.address, authority.cert_pem) as channel:
            await heartbeat(channel)
        status, _ = await http_get(server.http_port, "/healthz", client_context(authority.cert_pem))
        assert status == 200
        stranger = authority.issue_client("stranger")
        stranger.write(tmp_path / "stranger.pem", tmp_path / "stranger.key")
        context = client_context(authority.cert_pem)
        context.load_cert_chain(tmp_path / "stranger.pem", tmp_path / "stranger.key")
        with pytest.raises((ssl.SSLError, ConnectionError, IndexError)):
            await http_get(server.http_port, "/healthz", context)


async def test_certificates_rotate_under_load_without_a_failed_call(
    tmp_path: Path, files: TlsFolder, authority: Authority
) -> None:
    """Heartbeats on one long connection and on a new connection each, and HTTP requests, while certificates change."""
    async with tls_server(tmp_path, **files.settings) as server:
        context = client_context(authority.cert_pem)
        rotated = asyncio.Event()
        calls = {"kept": 0, "new": 0, "http": 0}

        async def keep_beating() -> None:
            async with connect(server.address, authority.cert_pem) as channel:
                while not rotated.is_set():
                    await heartbeat(channel, "kept")
                    calls["kept"] += 1

        async def beat_on_new_connections() -> None:
            while not rotated.is_set():
                async with connect(server.address, authority.cert_pem) as channel:
                    await heartbeat(channel, "new")
                calls["new"] += 1

        async def request() -> None:
            while not rotated.is_set():
                status, _ = await http_get(server.http_port, "/readyz", context)
                assert status == 200
                calls["http"] += 1

        async def rotate() -> None:
            tls = server.server.tls
            assert tls is not None
            try:
                for _ in range(ROTATIONS):
                    before, calls_before = tls.certificate, dict(calls)
                    files.rotate(authority)
                    await tls.reload()
                    assert tls.certificate is not before
                    # A call of each kind between two rotations.
                    await eventually(partial(has_advanced, calls, calls_before))
            finally:
                rotated.set()

        async with asyncio.TaskGroup() as group:
            for work in (keep_beating(), beat_on_new_connections(), request(), rotate()):
                group.create_task(work)
        assert min(calls.values()) >= ROTATIONS
        assert server.server.tls is not None
        shown = await peer_certificate(server.http_port, authority.cert_pem)
        assert shown == ssl.PEM_cert_to_DER_cert(files.cert_file.read_text())


async def test_grpc_is_given_a_certificate_once_for_each_change(
    files: TlsFolder, authority: Authority
) -> None:
    """gRPC crashes if it is given one while another handshake begins, so it must not get one for every handshake."""
    tls = make_listener_tls(Settings(**files.settings), SystemClock())  # type: ignore[arg-type]
    assert tls is not None
    fetch = tls.changed_configuration()
    assert [fetch() for _ in range(3)] == [None] * 3
    files.rotate(authority)
    assert await tls.reload()
    assert fetch() is not None
    assert [fetch() for _ in range(3)] == [None] * 3


async def test_the_receive_probe_survives_a_rotation(
    tmp_path: Path, files: TlsFolder, authority: Authority
) -> None:
    async with tls_server(tmp_path, **files.settings) as server:
        await probe_answered(server.server)
        tls = server.server.tls
        assert tls is not None
        before = tls.certificate
        Authority("next CA").issue_server().write(files.cert_file, files.key_file)
        await eventually(lambda: tls.certificate is not before)
        await probe_answered(server.server)
        await probe_answered(server.server)


async def test_a_removed_client_ca_is_not_trusted_any_more(
    tmp_path: Path, files: TlsFolder, authority: Authority
) -> None:
    first, second = Authority("first"), Authority("second")
    client = first.issue_client()
    ca_file = first.write(tmp_path / "clients.pem")
    settings = {"tls_client_ca_file": str(ca_file), "tls_client_auth": "required"}
    async with tls_server(tmp_path, **files.settings, **settings) as server:
        tls = server.server.tls
        assert tls is not None
        async with connect(server.address, authority.cert_pem, client.cert_pem, client.key_pem()) as channel:
            await heartbeat(channel)
        before = tls.certificate
        second.write(ca_file)
        await eventually(lambda: tls.certificate is not before)
        async with connect(server.address, authority.cert_pem, client.cert_pem, client.key_pem()) as channel:
            await refusal(channel)


async def test_broken_files_keep_the_last_certificate_and_are_logged_once(
    tmp_path: Path, files: TlsFolder, authority: Authority
) -> None:
    with structlog.testing.capture_logs() as logs:
        async with tls_server(tmp_path, **files.settings) as server:
            tls = server.server.tls
            assert tls is not None
            before = tls.certificate
            replace(files.key_file, authority.issue_server().key_pem())
            for _ in range(4):
                await tls.reload()
            assert tls.certificate is before
            async with connect(server.address, authority.cert_pem) as channel:
                await heartbeat(channel)
            files.rotate(authority)
            await tls.reload()
            assert tls.certificate is not before
    errors = [entry for entry in logs if entry["log_level"] == "error"]
    assert len(errors) == 1
    assert "does not belong to the certificate" in errors[0]["why"]


async def test_files_that_do_not_match_for_a_moment_are_not_logged(
    tmp_path: Path, files: TlsFolder, authority: Authority
) -> None:
    with structlog.testing.capture_logs() as logs:
        async with tls_server(tmp_path, **files.settings) as server:
            tls = server.server.tls
            assert tls is not None
            issued = authority.issue_server()
            replace(files.cert_file, issued.cert_pem)
            await tls.reload()
            replace(files.key_file, issued.key_pem())
            await tls.reload()
            assert tls.certificate.files.cert_chain == issued.cert_pem
    assert not [entry for entry in logs if entry["log_level"] == "error"]


async def test_a_server_does_not_start_with_broken_files(tmp_path: Path, files: TlsFolder) -> None:
    files.key_file.unlink()
    with pytest.raises(TlsFilesUnusable):
        async with tls_server(tmp_path, **files.settings):
            pass


async def test_the_private_socket_is_for_this_user_only_and_removed(tmp_path: Path, files: TlsFolder) -> None:
    async with tls_server(tmp_path, **files.settings) as server:
        private_listener = server.server.private_listener
        assert private_listener is not None
        folder = Path(private_listener.address.removeprefix("unix:")).parent
        assert folder.stat().st_mode & 0o777 == 0o700
        assert folder.stat().st_uid == os.getuid()
    assert not folder.exists()


async def test_http_without_unix_sockets_uses_tls_and_survives_a_rotation(
    tmp_path: Path, files: TlsFolder, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    too_long = tmp_path / ("d" * 100)
    too_long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(too_long))
    async with tls_server(tmp_path, **files.settings) as server:
        assert server.server.private_listener is None
        context = client_context(authority.cert_pem)
        assert (await http_get(server.http_port, WORKERS_PATH, context))[0] == 200
        tls = server.server.tls
        assert tls is not None
        before = tls.certificate
        files.rotate(authority)
        await eventually(lambda: tls.certificate is not before)
        assert (await http_get(server.http_port, WORKERS_PATH, context))[0] == 200
    assert not list(too_long.iterdir())


def has_advanced(calls: dict[str, int], before: dict[str, int]) -> bool:
    return all(calls[kind] > count for kind, count in before.items())


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds. The files are looked at once a second, which nothing announces."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def probe_answered(server: Any) -> None:
    """Wait for the answer to a probe that was sent after this call."""
    progress = server.node.receive_progress
    now_ms = server.node.clock.monotonic_ms()
    progress.probe_wanted.set()
    await eventually(lambda: progress.is_measuring and progress.heard_until_ms > now_ms)
