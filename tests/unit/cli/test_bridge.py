"""The flags of `liveness bridge temporal`, and links to Temporal's page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from liveness.cli import main
from liveness.cli.bridge import bridge, bridge_settings
from liveness.cli.errors import UsageError
from liveness.cli.temporal_link import temporal_link
from liveness.v1.worker_pb2 import ActivityRef, Worker


def flags(*arguments: str) -> dict[str, Any]:
    command: Any = bridge
    context = command.commands["temporal"].make_context("temporal", ["--upstream", "t:7233", *arguments])
    return dict(context.params)


def settings(*arguments: str) -> Any:
    return bridge_settings(flags(*arguments))


def test_the_flags_become_settings(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("secret\n")
    made = settings(
        *(
            "--upstream",
            "a:1, b:2",
            "--address",
            "l:7400",
            "--lease",
            "9s",
            "--hints",
            "off",
            "--restart-allowance",
            "1m",
        ),
        *("--skip", "q1,type:slow*", "--upstream-tls", "--upstream-api-key-file", str(key_file)),
        *("--temporal-ui", "https://ui.example/"),
    )
    assert made.upstream == ("a:1", "b:2")
    assert made.liveness == ("l:7400",)
    assert (made.lease_ms, made.hint_grace_ms, made.restart_allowance_ms) == (9_000, 0, 60_000)
    assert made.skip == ("q1", "type:slow*")
    assert made.upstream_api_key == "secret"
    assert made.upstream_tls is not None
    assert made.temporal_ui == "https://ui.example"
    assert "secret" not in repr(made)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--upstream", "nowhere"), "--upstream is 'nowhere', but must be HOST:PORT"),
        (("--listen", "x"), "--listen is 'x', but must be HOST:PORT"),
        (("--hints", "10ms"), "--hints must be off, or at least 1s"),
        (("--lease", "1s"), "--lease must be at least 2s"),
        (("--temporal-ui", "javascript:x"), "--temporal-ui must begin with http:// or https://"),
        (("--tls-cert-file", "KEY"), "--tls-cert-file and --tls-key-file need each other"),
        (("--upstream-cert-file", "KEY"), "--upstream-cert-file and --upstream-key-file need each other"),
        (("--tls-worker-ca-file", "KEY"), "--tls-worker-ca-file needs --tls-cert-file and --tls-key-file"),
        (("--upstream-api-key-file", "KEY"), "an API key is not sent in plain text"),
        (
            ("--upstream-api-key-file", "KEY", "--upstream-tls", "--listen", "0.0.0.0:7233"),
            "everyone who can connect to 0.0.0.0:7233 would use the bridge's own credential",
        ),
        (("--upstream-ca-file", "missing"), "--upstream-ca-file: missing cannot be read"),
    ],
)
def test_wrong_flags_are_refused_in_one_sentence(
    arguments: tuple[str, ...], why: str, tmp_path: Path
) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("secret")
    with pytest.raises(UsageError) as raised:
        settings(*(str(key_file) if argument == "KEY" else argument for argument in arguments))
    assert why in raised.value.message


def test_the_command_needs_an_upstream() -> None:
    answer = CliRunner().invoke(main, ["bridge", "temporal"])
    assert answer.exit_code == 2
    assert "--upstream" in answer.output


def test_an_activity_links_to_its_workflow() -> None:
    activity = ActivityRef(workflow_id="order/7", run_id="run", activity_id="1@1")
    worker = Worker(namespace="shop", labels={"temporal-ui": "https://ui.example"})
    assert temporal_link(worker, activity) == "https://ui.example/namespaces/shop/workflows/order%2F7/run"
    assert temporal_link(Worker(labels={"temporal-ui": "javascript:alert(1)"}), activity) == ""
    assert temporal_link(Worker(), activity) == ""
