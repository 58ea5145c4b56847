"""Commands with TLS and a token: options, variables, and the sentences that they fail with."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import grpc
import pytest

from liveness.cli import COMMANDS, main
from tests.certificates import Authority, TlsFolder, make_tls_folder
from tests.system.cli.server_processes import child_process, environment, liveness_command, running_server
from tests.system.cli.shell import Shell
from tests.system.cli.watch_process import watch_process

CANARY = "lvt_canary_0a1b2c3d4e"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> TlsFolder:
    return make_tls_folder(tmp_path_factory.mktemp("tls"), authority)


@pytest.fixture(scope="module")
def tls_shell(tmp_path_factory: pytest.TempPathFactory, files: TlsFolder) -> Iterator[Shell]:
    with running_server(tmp_path_factory.mktemp("server"), *files.flags) as address:
        yield Shell(address)


def test_tls_by_option_and_by_variable(tls_shell: Shell, files: TlsFolder) -> None:
    ca_file = str(files.ca_file)
    assert tls_shell.run("workers", "list", "--tls-ca-file", ca_file).exit_code == 0
    assert tls_shell.run("--tls-ca-file", ca_file, "workers", "list").exit_code == 0
    assert tls_shell.run("workers", "list", LIVENESS_TLS_CA_FILE=ca_file).exit_code == 0
    assert tls_shell.run("--tls", "nodes", "list", LIVENESS_TLS_CA_FILE=ca_file).exit_code == 0
    named = {"LIVENESS_TLS_CA_FILE": ca_file, "LIVENESS_TLS_SERVER_NAME": "node.example"}
    assert tls_shell.run("config", "get", **named).exit_code == 0


def test_doctor_connects_with_tls(tls_shell: Shell, files: TlsFolder, tmp_path: Path) -> None:
    db = f"sqlite:///{tmp_path}/none.db"
    found = tls_shell.run("doctor", "--db", db, "--json", LIVENESS_TLS_CA_FILE=str(files.ca_file)).output
    assert f"{tls_shell.address} serves" in found
    found = tls_shell.run("doctor", "--db", db, "--json").output
    assert "if it uses TLS, connect with TLS, too" in found


def test_plain_text_to_a_tls_server(tls_shell: Shell) -> None:
    assert tls_shell.sentence("workers", "list") == (
        f"cannot connect to {tls_shell.address}: the server closed the connection at once; if it uses TLS, connect with "
        "TLS, too (--tls, --tls-ca-file)"
    )


def test_a_server_that_no_trusted_authority_signed(tls_shell: Shell, tmp_path: Path) -> None:
    other = Authority("other").write(tmp_path / "other.pem")
    assert tls_shell.sentence("workers", "list", "--tls-ca-file", str(other)) == (
        f"cannot connect to {tls_shell.address}: the server's certificate is not signed by an authority that this "
        "program trusts"
    )


def test_tls_to_a_server_without_it(server: str, files: TlsFolder) -> None:
    assert Shell(server).sentence("workers", "list", "--tls-ca-file", str(files.ca_file)) == (
        f"cannot connect to {server}: the server does not use TLS, so connect without it"
    )


def test_files_that_cannot_be_used(tls_shell: Shell, tmp_path: Path, files: TlsFolder) -> None:
    missing = tmp_path / "missing"
    assert tls_shell.sentence("workers", "list", "--tls-ca-file", str(missing), exit_code=2) == (
        f"the CA file {missing} cannot be read: No such file or directory"
    )
    assert tls_shell.sentence(
        "nodes", "list", "--tls-client-cert-file", str(files.cert_file), exit_code=2
    ) == ("a client certificate needs both a certificate file and a key file")
    assert tls_shell.sentence("nodes", "list", "--token-file", str(missing), exit_code=2) == (
        f"the token file {missing} cannot be read: No such file or directory"
    )


def test_a_token_is_not_sent_in_plain_text_beyond_loopback(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(CANARY)
    assert Shell("liveness.example:7400").sentence(
        "workers", "list", exit_code=2, LIVENESS_TOKEN_FILE=str(token_file)
    ) == (
        "a token is not sent to liveness.example:7400 in plain text; connect with TLS, or to a loopback address"
    )


def test_the_token_of_the_file_is_sent_and_refusals_say_what_to_do(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(f"{CANARY}\n")
    with refusing_server() as server:
        shell = Shell(server.address)
        sentence = shell.sentence("workers", "list", "--token-file", str(token_file))
        assert sentence == (
            "no (UNAUTHENTICATED); set LIVENESS_TOKEN_FILE, or --token-file, to the file with a valid token."
        )
        server.code = grpc.StatusCode.PERMISSION_DENIED
        sentence = shell.sentence("watch", LIVENESS_TOKEN_FILE=str(token_file))
        assert sentence == (
            "no (PERMISSION_DENIED); ask an admin for the grant, or set LIVENESS_TOKEN_FILE to another token's file."
        )
        assert server.authorizations == {f"Bearer {CANARY}"}


def test_no_option_takes_a_secret() -> None:
    """Every process on the machine can read the arguments of the others."""
    options = set(all_options(main))
    assert "--token-file" in options
    assert not {option for option in options if "token" in option or "secret" in option} - {
        "--token-file",
        "--webhook-secret-file",
        "token_id",  # which is not secret
    }


def test_the_token_is_neither_in_the_process_list_nor_in_the_output(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(CANARY)
    with running_server(tmp_path) as address:
        with watch_process(address, "default", "--json", "--token-file", str(token_file)) as watch:
            Shell(address).heartbeat("w-1")
            line = watch.line()
            process = Path(f"/proc/{watch.process.pid}")
            assert CANARY.encode() not in (process / "cmdline").read_bytes()
            assert CANARY.encode() not in (process / "environ").read_bytes()
            _, output, errors = watch.end()
        assert CANARY not in line + output + errors
    assert CANARY not in (tmp_path / "server.log").read_text()


def test_a_server_with_files_that_do_not_fit_exits_with_a_sentence(
    tmp_path: Path, files: TlsFolder, authority: Authority
) -> None:
    other = make_tls_folder(tmp_path / "other", authority)
    for command in (("serve",), ("frontend", "--nodes", "127.0.0.1:1")):
        flags = ("--tls-cert-file", str(files.cert_file), "--tls-key-file", str(other.key_file))
        ended = subprocess.run(
            liveness_command(*command, "--listen", "127.0.0.1:0", *flags),
            env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert ended.returncode == 2
        assert ended.stderr == (
            f"error: TLS cannot be used: the key in {other.key_file} does not belong to the certificate in "
            f"{files.cert_file}.\n"
        )


def test_a_frontend_with_tls(tmp_path: Path, files: TlsFolder, server: str, cluster_address: str) -> None:
    flags = ("--nodes", cluster_address, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", *files.flags)
    with child_process(liveness_command("frontend", *flags), tmp_path) as process:
        assert process.stdout is not None
        lines: list[str] = []
        while not lines or "nodes " not in lines[-1]:
            lines.append(process.stdout.readline())
        address = next(line.split()[-1] for line in lines if "listening on" in line)
        assert "https://127.0.0.1:" in "".join(lines)
        shell = Shell(address)
        ca_file = str(files.ca_file)
        assert shell.run("workers", "list", "--tls-ca-file", ca_file).exit_code == 0
        assert "connect with TLS, too" in shell.sentence("workers", "list")


class RefusingServer(grpc.GenericRpcHandler):
    """Refuses every call, and remembers its authorization."""

    def __init__(self) -> None:
        self.address = ""
        self.code = grpc.StatusCode.UNAUTHENTICATED
        self.authorizations: set[str | None] = set()

    def service(self, handler_call_details: Any) -> Any:
        self.authorizations.add(dict(handler_call_details.invocation_metadata).get("authorization"))

        def refuse(_: bytes, context: grpc.ServicerContext) -> Any:
            context.abort(self.code, "no.")

        if handler_call_details.method.endswith("Watch"):
            return grpc.unary_stream_rpc_method_handler(refuse)
        return grpc.unary_unary_rpc_method_handler(refuse)


@contextmanager
def refusing_server() -> Iterator[RefusingServer]:
    handler = RefusingServer()
    server = grpc.server(ThreadPoolExecutor(2), handlers=[handler])
    handler.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield handler
    finally:
        server.stop(None).wait()


def all_options(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        yield from parameter.opts
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in COMMANDS if command is main else command.list_commands(context):
            subcommand = command.get_command(context, name)
            assert subcommand is not None
            yield from all_options(subcommand)
