"""Workers and clients with TLS and a token: what they send, and what they do when it is refused or changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from liveness.sdk import (
    TLS,
    Client,
    InvalidCredentials,
    LeaseLost,
    NotAuthenticated,
    NotPermitted,
    ServerAway,
    TokenFile,
    Worker,
)
from liveness.sdk.connection import Connection
from liveness.sdk.failover import ServerEndpoint
from tests.certificates import Authority, TlsFolder, make_tls_folder
from tests.integration.security.test_listener_tls import eventually
from tests.integration.security.tls_server import tls_server
from tests.integration.security.token_server import TokenCheck, token_server

CANARY = "lvt_canary_5f1c0b7e2d"


@pytest.fixture
def check() -> TokenCheck:
    return TokenCheck()


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture
def files(tmp_path: Path, authority: Authority) -> TlsFolder:
    return make_tls_folder(tmp_path / "tls", authority)


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TLS", "TLS_CA_FILE", "TOKEN_FILE"):
        monkeypatch.delenv(f"LIVENESS_{name}", raising=False)


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.DEBUG):
        yield caplog


async def test_every_call_and_stream_carries_the_token(
    tmp_path: Path, check: TokenCheck, logged: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    check.accepted = {CANARY}
    async with (
        token_server(tmp_path, check) as server,
        Worker(server.address, task_queue="q", token=CANARY) as worker,
        Client(server.address, token=CANARY) as client,
    ):

        @worker.activity("greet")
        async def greet(task: object) -> str:
            worker.stop()
            return "done"

        job = await client.schedule("greet", id="a-1", task_queue="q")
        await worker.run(handle_signals=False)
        assert (await client.wait(job.ref)).value() == "done"
    methods = {method for method, _ in check.received}
    assert {"GetServerInfo", "RecordWorkerHeartbeats", "Attach", "PollActivity"} <= methods
    assert {"ScheduleActivity", "CompleteActivity", "DescribeActivity", "ShutdownWorker"} <= methods
    assert {authorization for _, authorization in check.received} == {f"Bearer {CANARY}"}
    output = capfd.readouterr()
    assert CANARY not in logged.text + output.out + output.err


async def test_a_token_function_is_called_again_when_the_token_is_refused(
    tmp_path: Path, check: TokenCheck
) -> None:
    tokens = ["first"]
    check.accepted = {"first"}
    async with (
        token_server(tmp_path, check) as server,
        Worker(
            server.address, lease=2, disconnect_grace=None, task_queue="q", token=lambda: tokens[-1]
        ) as worker,
        worker.bind("held") as binding,
    ):
        await eventually(lambda: check.count("Attach", "first") > 0)
        tokens.append("second")
        check.accepted = {"second"}
        await eventually(lambda: check.count("RecordWorkerHeartbeats", "second") > 2)
        assert not binding.lost.is_set()
    refused = check.count("RecordWorkerHeartbeats", "first")
    assert refused > 0


async def test_a_token_that_stays_refused_ends_the_work(tmp_path: Path, check: TokenCheck) -> None:
    """The token is read again once; then the worker is fenced long before its lease is over."""
    calls = 0

    def token() -> str:
        nonlocal calls
        calls += 1
        return "only"

    check.accepted = {"only"}
    async with (
        token_server(tmp_path, check) as server,
        Worker(server.address, lease=60, task_queue="q", token=token) as worker,
    ):
        begun, calls_before = len(check.received), calls
        with pytest.raises(LeaseLost, match="LIVENESS_TOKEN_FILE"):
            await hold_until_lost(worker, check.accepted.clear)
        with pytest.raises(NotAuthenticated):
            _ = worker.instance_key
        methods = [method for method, _ in check.received[begun:]]
        # The first binds the activity, the second is refused, and so is the third, after the token was read again.
        assert methods.count("RecordWorkerHeartbeats") == 3
        assert calls == calls_before + 1


async def test_permission_denied_ends_the_worker_at_once(tmp_path: Path, check: TokenCheck) -> None:
    check.accepted = {"good"}
    async with token_server(tmp_path, check) as server:
        async with Worker(server.address, lease=60, task_queue="q", token="good") as worker:
            with pytest.raises(LeaseLost, match="does not permit RecordWorkerHeartbeats"):
                await hold_until_lost(worker, lambda: check.denied_methods.add("RecordWorkerHeartbeats"))
        with pytest.raises(NotPermitted, match="Ask its operator for a grant"):
            async with Worker(server.address, token="good"):
                pass


async def test_permission_denied_for_the_stream_ends_the_worker(tmp_path: Path, check: TokenCheck) -> None:
    check.accepted = {"good"}
    check.denied_methods = {"Attach"}
    async with token_server(tmp_path, check) as server, Worker(server.address, token="good") as worker:
        await eventually(lambda: worker._session is not None and worker._session.has_ended)
        assert isinstance(worker._session and worker._session.error, NotPermitted)


async def test_a_client_reads_its_token_file_again(tmp_path: Path, check: TokenCheck) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("first\n")
    check.accepted = {"first"}
    async with (
        token_server(tmp_path, check) as server,
        Client(server.address, token=TokenFile(token_file)) as client,
    ):
        await client.schedule("t", id="a", task_queue="q")
        token_file.write_text("second\n")
        check.accepted = {"second"}
        await client.schedule("t", id="b", task_queue="q")
        token_file.write_text("wrong\n")
        check.accepted = set()
        with pytest.raises(NotAuthenticated, match="Set token= or LIVENESS_TOKEN_FILE to a valid token"):
            await client.schedule("t", id="c", task_queue="q")


async def test_the_token_file_of_the_environment(
    tmp_path: Path, check: TokenCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("from-the-file")
    monkeypatch.setenv("LIVENESS_TOKEN_FILE", str(token_file))
    check.accepted = {"from-the-file"}
    async with token_server(tmp_path, check) as server, Worker(server.address) as worker:
        assert worker.lease_epoch == 1


async def test_connections_are_not_shared_between_credentials(tmp_path: Path, check: TokenCheck) -> None:
    check.accepted = {"one", "two"}
    async with (
        token_server(tmp_path, check) as server,
        Client(server.address, token="one") as one,
        Client(server.address, token="two") as two,
        Client(server.address, token="two") as also_two,
    ):
        for number, client in enumerate((one, two, also_two)):
            await client.schedule("t", id=f"a-{number}", task_queue="q")
        assert check.count("ScheduleActivity", "one") == 1
        assert check.count("ScheduleActivity", "two") == 2
        connections = [c for c in Connection._shared.values() if c.address == server.address]
        assert len(connections) == 2
    assert not [c for c in Connection._shared.values() if c.address == server.address]


async def test_workers_and_clients_over_tls(tmp_path: Path, files: TlsFolder) -> None:
    tls = TLS(ca_file=files.ca_file)
    async with tls_server(tmp_path, **files.settings) as server:
        async with Worker(server.address, tls=tls), Client(server.address, tls=tls) as client:
            await client.schedule("t", id="a", task_queue="q")
        named = TLS(ca_file=files.ca_file, server_name="node.example")
        async with Worker(server.address, tls=named):
            pass


@pytest.mark.parametrize(
    ("uses_tls", "ca_name", "sentence"),
    [
        (False, "ca.pem", "the server closed the connection at once; if it uses TLS, connect with TLS, too"),
        (True, "other.pem", "certificate is not signed by an authority that this program trusts"),
    ],
)
async def test_a_worker_that_cannot_connect_says_why(
    tmp_path: Path, files: TlsFolder, uses_tls: bool, ca_name: str, sentence: str
) -> None:
    Authority("other").write(files.folder / "other.pem")
    tls = TLS(ca_file=files.folder / ca_name) if uses_tls else False
    async with tls_server(tmp_path, **files.settings) as server:
        with pytest.raises(ServerAway, match=sentence):
            async with Worker(server.address, tls=tls, start_timeout=2):
                pass


async def test_a_worker_survives_the_rotation_of_the_authority(
    tmp_path: Path, files: TlsFolder, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new CA is distributed beside the old one, then the server's certificate changes, then the old CA is removed."""
    # So that the stream has to move, too.
    monkeypatch.setattr("liveness.sdk.connection.RENEWED_LINGER_MS", 100)
    next_authority = Authority("next CA")
    async with (
        tls_server(tmp_path, **files.settings) as server,
        Worker(
            server.address, lease=2, disconnect_grace=1, task_queue="q", tls=TLS(ca_file=files.ca_file)
        ) as worker,
        worker.bind("held") as binding,
    ):
        connection = worker._connection
        tls = server.server.tls
        assert connection is not None
        assert tls is not None
        for ca_pem in (authority.cert_pem + next_authority.cert_pem, next_authority.cert_pem):
            before = connection.endpoints.current
            files.ca_file.write_bytes(ca_pem)
            await eventually(partial(has_new_channel, connection, before))
            if ca_pem != next_authority.cert_pem:
                files.rotate(next_authority)
                await tls.reload()
        sequence = worker._live_session().heartbeat_state.sequence
        await eventually(lambda: worker._live_session().heartbeat_state.sequence > sequence + 2)
        assert not binding.lost.is_set()
        assert worker.lease_epoch == 1


async def test_a_broken_ca_file_keeps_the_last_one_and_is_logged_once(
    tmp_path: Path, files: TlsFolder, logged: pytest.LogCaptureFixture
) -> None:
    async with (
        tls_server(tmp_path, **files.settings) as server,
        Client(server.address, tls=TLS(ca_file=files.ca_file)) as client,
    ):
        await client.schedule("t", id="a", task_queue="q")
        files.ca_file.write_text("nonsense")
        await eventually(lambda: "has no certificate in PEM format" in logged.text)
        await asyncio.to_thread(client._connect().credentials_watch._reload, token=False)
        await client.schedule("t", id="b", task_queue="q")
    assert logged.text.count("has no certificate in PEM format") == 1


def test_a_token_is_not_sent_in_plain_text_beyond_loopback() -> None:
    for address in (
        "liveness.example:7400",
        "10.0.0.7:7400",
        "127.0.0.1:7400,10.0.0.7:7400",
        "[2001:db8::1]:7400",
    ):
        with pytest.raises(InvalidCredentials, match="in plain text; connect with TLS") as caught:
            Worker(address, token=CANARY)
        assert CANARY not in str(caught.value)
        with pytest.raises(InvalidCredentials):
            Client(address, token=TokenFile("/nowhere"))
    for address in ("localhost:7400", "127.0.0.5:7400", "[::1]:7400", "unix:/run/liveness.sock"):
        Worker(address, token=CANARY)
    Worker("liveness.example:7400", token=CANARY, tls=True)


async def test_credentials_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs both a certificate file and a key file"):
        TLS(cert_file="client.pem")
    for token, message in (
        (TokenFile(tmp_path / "missing"), "the token file .* cannot be read: No such file or directory"),
        ("two words", "the token has no token: one line of printable characters without spaces"),
        (_failing, "the function that returns the token failed with RuntimeError"),
    ):
        with pytest.raises(InvalidCredentials, match=message) as caught:
            async with Worker("localhost:7400", token=token):
                pass
        assert CANARY not in str(caught.value)


def has_new_channel(connection: Connection, before: ServerEndpoint) -> bool:
    return connection.endpoints.current is not before


async def hold_until_lost(worker: Worker, refuse: Callable[[], None]) -> None:
    """Hold an activity while the server begins to refuse heartbeats."""
    async with worker.bind("held"), asyncio.timeout(30):
        refuse()
        worker._live_session().send_heartbeat_now()  # rather than wait a third of the lease
        await asyncio.Event().wait()


def _failing() -> str:
    raise RuntimeError(CANARY)
