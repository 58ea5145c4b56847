"""`liveness serve` as a process, and the command line as a whole."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from liveness.cli import main
from liveness.cli.serve import banner
from liveness.config.settings import SETTING_TYPES, Settings, variable_name
from tests.system.cli.server_processes import (
    child_process,
    environment,
    first_address,
    liveness_command,
    running_server,
)
from tests.system.cli.shell import Shell


def run(*args: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        liveness_command(*args), cwd=folder, env=environment(**variables), capture_output=True, text=True, check=False
    )  # fmt: skip


def refused(*args: str, folder: Path, **variables: str) -> str:
    """Return the one sentence of a server that does not start."""
    result = run("serve", *args, folder=folder, **variables)
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line.removeprefix("error: ")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_server_prints_its_address_and_stops_on_a_signal(tmp_path: Path, how: signal.Signals) -> None:
    with child_process(
        liveness_command("serve", "--listen", "127.0.0.1:0", "--shards", "1"), tmp_path
    ) as process:
        assert process.stdout is not None
        address, lines = first_address(process.stdout)
        assert lines[0].startswith("liveness ")
        assert Shell(address).json("shards", "list")[0]["serving"] is True
        process.send_signal(how)
        rest = process.stdout.read()
        assert process.wait() == 0
    assert f"liveness workers list --address {address}" in rest
    assert "Traceback" not in (tmp_path / "server.log").read_text()
    assert (tmp_path / "liveness.db").exists()


def test_acknowledged_data_survives_a_restart(tmp_path: Path) -> None:
    with running_server(tmp_path) as address:
        Shell(address).heartbeat("w")
    with running_server(tmp_path) as address:
        (worker,) = Shell(address).json("workers", "list")
        assert worker["worker_instance_key"] == "w"


def test_a_server_reads_settings_from_file_and_environment(tmp_path: Path) -> None:
    (tmp_path / "liveness.toml").write_text("shards = 3\n")
    with running_server(tmp_path, "--config", "liveness.toml", "--shards", "5") as address:
        assert len(Shell(address).json("shards", "list")) == 5


def test_bad_settings_are_reported_in_one_sentence(tmp_path: Path) -> None:
    rule = "but must be a whole number from 1 to 4096."
    assert refused("--shards", "0", folder=tmp_path) == f"flag --shards is '0', {rule}"
    assert refused(folder=tmp_path, LIVENESS_SHARDS="x") == f"variable LIVENESS_SHARDS is 'x', {rule}"
    (tmp_path / "c.toml").write_text("shards = 0")
    assert refused("--config", "c.toml", folder=tmp_path) == f"key shards in c.toml is 0, {rule}"
    assert not (tmp_path / "liveness.db").exists()


def test_a_database_in_use_or_of_another_program_is_reported_in_one_sentence(tmp_path: Path) -> None:
    with running_server(tmp_path):
        assert "in use by another liveness server" in refused("--shards", "2", folder=tmp_path)
    assert "created with 2 shards" in refused("--shards", "3", folder=tmp_path)


def test_an_address_in_use_is_reported_in_one_sentence(tmp_path: Path, server: str) -> None:
    assert server in refused("--listen", server, folder=tmp_path)


def test_an_unreachable_database_is_reported_in_one_sentence_without_the_password(tmp_path: Path) -> None:
    result = run("serve", "--db", "postgresql://u:hunter2@127.0.0.1:1/x", folder=tmp_path)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert "postgresql://u:***@127.0.0.1:1/x: " in line


def test_the_banner_shows_commands_that_reach_the_server() -> None:
    usual = banner(Settings(), "127.0.0.1:7400")
    assert "  liveness workers list\n" in usual
    assert "  grpcurl -plaintext " in usual
    assert "  liveness workers list --address 127.0.0.1:9\n" in banner(Settings(), "0.0.0.0:9")
    assert "  liveness workers list --address [::1]:9\n" in banner(Settings(), "[::]:9")
    assert "grpcurl" not in banner(Settings(reflection=False), "127.0.0.1:7400")
    assert "hunter2" not in banner(Settings(db="postgresql://u:hunter2@h/x"), "127.0.0.1:7400")


def test_json_logs_have_no_banner(tmp_path: Path) -> None:
    with subprocess.Popen(
        liveness_command("serve", "--listen", "127.0.0.1:0", "--shards", "1", "--log-format", "json"),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        events = (json.loads(line)["event"] for line in process.stderr)
        assert "serving" in events
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate()
    assert (process.returncode, out) == (0, "")


def test_listing_the_commands_imports_none_of_them() -> None:
    program = "import sys, liveness.cli; print({'grpc', 'rich', 'sqlalchemy', 'google.protobuf'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def commands(
    command: click.Command, path: tuple[str, ...] = ()
) -> list[tuple[tuple[str, ...], click.Command]]:
    found = [(path, command)]
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            found += commands(below, (*path, name))
    return found


@pytest.mark.parametrize(("path", "command"), commands(main), ids=lambda value: str(value))
def test_every_command_and_option_is_explained(path: tuple[str, ...], command: click.Command) -> None:
    assert Shell().ok(*path, "--help").startswith("Usage: ")
    assert command.help
    for parameter in command.params:
        assert isinstance(parameter, click.Argument) or getattr(parameter, "help", None), parameter.name
        assert parameter.envvar is None


def test_flags_of_serve_are_settings() -> None:
    serve = main.get_command(click.Context(main), "serve")
    assert serve is not None
    assert {parameter.name for parameter in serve.params} - {"config"} <= set(SETTING_TYPES)


def test_the_help_of_serve_names_every_setting() -> None:
    shown = Shell().ok("serve", "--help")
    serve = main.get_command(click.Context(main), "serve")
    assert serve is not None
    flags = {parameter.name for parameter in serve.params}
    for setting in SETTING_TYPES:
        name = f"--{setting.replace('_', '-')}" if setting in flags else variable_name(setting)
        assert name in shown, setting


def test_version_prints_the_version() -> None:
    assert Shell().ok("--version").startswith("liveness ")
