"""`liveness auth`, and the posture of a server, with real processes."""

from __future__ import annotations

import json
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.cli.server_processes import child_process, environment, first_address, liveness_command


def run(*args: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        liveness_command(*args), cwd=folder, env=environment(**variables), capture_output=True, text=True, check=False
    )  # fmt: skip


@pytest.mark.parametrize("command", [["serve"], ["frontend", "--nodes", "127.0.0.1:1"]])
@pytest.mark.parametrize("auth", ["on", "off"])
def test_a_listener_beyond_loopback_without_protection_is_refused_in_one_sentence(
    tmp_path: Path, command: list[str], auth: str
) -> None:
    result = run(*command, "--listen", "0.0.0.0:0", "--auth", auth, folder=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    [line] = result.stderr.splitlines()
    assert "listen 0.0.0.0:0 has no TLS" in line
    assert "--insecure" in line
    assert list(tmp_path.iterdir()) == [], "nothing was opened"


def test_the_first_admin_token_is_written_once_to_a_file_of_its_owner(tmp_path: Path) -> None:
    assert run("auth", "init", "admin-token", "--shards", "1", folder=tmp_path).returncode == 0
    token_file = tmp_path / "admin-token"
    assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
    token = token_file.read_text()
    again = run("auth", "init", "second", "--shards", "1", folder=tmp_path)
    assert again.returncode == 1
    assert "--force" in again.stderr
    assert not (tmp_path / "second").exists()
    overwriting = run("auth", "init", "admin-token", "--force", "--shards", "1", folder=tmp_path)
    assert overwriting.returncode == 2
    assert token_file.read_text() == token
    assert run("auth", "init", "second", "--force", "--shards", "1", folder=tmp_path).returncode == 0
    assert (tmp_path / "second").read_text() != token


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    assert run("auth", "init", "admin-token", "--shards", "1", folder=tmp_path).returncode == 0
    command = liveness_command("serve", "--listen", "127.0.0.1:0", "--shards", "1", "--auth", "on")
    with child_process(command, tmp_path) as process:
        assert process.stdout is not None
        yield first_address(process.stdout)[0]


def test_tokens_are_created_used_and_revoked(tmp_path: Path, server: str) -> None:
    admin: dict[str, Any] = {
        "folder": tmp_path,
        "LIVENESS_ADDRESS": server,
        "LIVENESS_TOKEN_FILE": "admin-token",
    }
    nobody: dict[str, Any] = {"folder": tmp_path, "LIVENESS_ADDRESS": server}
    refused = run("workers", "list", **nobody)
    assert refused.returncode == 1
    assert "UNAUTHENTICATED" in refused.stderr
    created = run("auth", "token", "create", "render", "worker:shop", "reader:shop", **admin)
    secret = created.stdout.strip()
    (tmp_path / "token").write_text(secret)
    render = {**admin, "LIVENESS_TOKEN_FILE": "token"}
    me = json.loads(run("auth", "whoami", "--json", **render).stdout)
    assert (me["principal"], me["grants"]) == ("render", ["worker:shop", "reader:shop"])
    assert run("workers", "list", "-n", "shop", **render).returncode == 0
    assert "PERMISSION_DENIED" in run("workers", "list", "-n", "other", **render).stderr
    answers = [
        run("auth", "can-i", *question, **render) for question in (["reader", "shop"], ["admin", "shop"])
    ]
    assert [(answer.stdout.strip(), answer.returncode) for answer in answers] == [("yes", 0), ("no", 1)]
    listed = json.loads(run("auth", "token", "list", "--json", **admin).stdout)
    assert [token["principal"] for token in listed] == ["render", "admin"]
    assert secret not in json.dumps(listed)
    assert run("auth", "token", "revoke", listed[0]["token_id"], "--yes", **admin).returncode == 0
    assert "UNAUTHENTICATED" in run("auth", "whoami", **render).stderr
    for (
        file
    ) in tmp_path.iterdir():  # the canary: neither in the log nor in the database and its write-ahead log
        if file.name != "token":
            assert secret.encode() not in file.read_bytes(), file
            assert secret.split("_", 2)[2].encode() not in file.read_bytes(), file


def test_a_token_is_not_sent_over_plain_text_beyond_loopback(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("lvt_aaaaaaaaaaaa_" + "A" * 43)
    result = run(
        "workers", "list", folder=tmp_path, LIVENESS_ADDRESS="192.0.2.1:7400", LIVENESS_TOKEN_FILE="token"
    )
    assert result.returncode == 2
    assert "in plain text; connect with TLS" in result.stderr
