"""The flags of `liveness bridge temporal`, which `liveness serve` shares, and links to Temporal's page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from liveness.bridges.temporal.settings import BridgeSettings, ListenTls, UpstreamTls
from liveness.cli import main
from liveness.cli.bridge import bridge, bridge_settings
from liveness.cli.bridge_process import BridgeUnusable, own_bridge_settings
from liveness.cli.errors import UsageError
from liveness.cli.serve import serve, settings_from_flags
from liveness.cli.temporal_link import temporal_link
from liveness.config.bridge_settings import BRIDGE_SETTING_TYPES
from liveness.config.settings import Settings, SettingsError
from liveness.v1.worker_pb2 import ActivityRef, Worker
from tests.certificates import Authority

MakeSettings = Callable[..., Any]


def command_settings(*arguments: str) -> Any:
    """The settings of `liveness bridge temporal` with these flags."""
    command: Any = bridge
    context = command.commands["temporal"].make_context("temporal", ["--upstream", "t:7233", *arguments])
    return bridge_settings(dict(context.params))


def server_settings(*arguments: str) -> Any:
    """The settings of the bridge that `liveness serve` runs with the same flags, which have a prefix there."""
    names = {"--upstream": "--bridge-temporal", "--insecure": "--insecure"}
    prefixed = [
        names.get(argument, f"--bridge-{argument[2:]}") if argument.startswith("--") else argument
        for argument in ("--upstream", "t:7233", *arguments)
    ]
    flags = serve.make_context("serve", prefixed).params
    return own_bridge_settings(settings_from_flags(flags, flags.pop("config")))


@pytest.fixture(params=[command_settings, server_settings])
def settings(request: pytest.FixtureRequest) -> MakeSettings:
    make: MakeSettings = request.param
    return make


def test_both_commands_have_the_same_flags() -> None:
    command: Any = bridge
    own = {option.name for option in command.commands["temporal"].params}
    of_server = {str(option.name) for option in serve.params}
    expected = {name.removeprefix("bridge_") for name in of_server if name.startswith("bridge_")} - {
        "temporal"
    }
    assert expected == set(BRIDGE_SETTING_TYPES)
    assert expected <= own


def test_the_flags_become_settings(settings: MakeSettings, tmp_path: Path) -> None:
    api_key_file = tmp_path / "api-key"
    api_key_file.write_text("secret\n")
    pem_file, key_file = tmp_path / "pem", tmp_path / "key"
    Authority().issue_server().write(pem_file, key_file)
    made = settings(
        *(
            "--upstream",
            "a:1, b:2",
            "--lease",
            "9s",
            "--hints",
            "off",
            "--restart-allowance",
            "1m",
        ),
        *("--skip", "q1,type:slow*", "--upstream-tls", "--upstream-api-key-file", str(api_key_file)),
        *("--only", "type:*", "--upstream-ca-file", str(pem_file), "--upstream-server-name", "temporal"),
        *("--upstream-cert-file", str(pem_file), "--upstream-key-file", str(key_file)),
        *("--tls-cert-file", str(pem_file), "--tls-key-file", str(key_file)),
        *("--tls-worker-ca-file", str(pem_file), "--listen", "0.0.0.0:7234"),
        *("--temporal-ui", "https://ui.example/"),
    )
    pem, key = pem_file.read_bytes(), key_file.read_bytes()
    assert made.listen == "0.0.0.0:7234"
    assert made.only == ("type:*",)
    assert made.upstream_tls == UpstreamTls(ca=pem, certificate=pem, key=key, server_name="temporal")
    assert made.listen_tls == ListenTls(certificate=pem, key=key, client_ca=pem)
    assert made.upstream == ("a:1", "b:2")
    assert (made.lease_ms, made.hint_grace_ms, made.restart_allowance_ms) == (9_000, 0, 60_000)
    assert made.skip == ("q1", "type:slow*")
    assert made.upstream_api_key == "secret"
    assert made.temporal_ui == "https://ui.example"
    assert "secret" not in repr(made)


def test_without_flags_the_defaults_hold(settings: MakeSettings) -> None:
    made, defaults = settings(), BridgeSettings(upstream=("t:7233",), liveness=())
    assert replace(made, liveness=(), credentials=defaults.credentials) == defaults


def test_the_command_names_liveness() -> None:
    assert command_settings("--address", "a:1,b:2").liveness == ("a:1", "b:2")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--upstream", "nowhere"), "--upstream is 'nowhere', but must be HOST:PORT"),
        (("--listen", "x"), "--listen is 'x', but must be HOST:PORT"),
        (("--hints", "10ms"), "--hints is '10ms', but must be off, or a duration of at least 1s"),
        (("--lease", "1s"), "--lease is '1s', but must be a duration of at least 2s"),
        (("--temporal-ui", "javascript:x"), "--temporal-ui is 'javascript:x', but must be http://"),
        (("--tls-cert-file", "KEY"), "--tls-cert-file and --tls-key-file need each other"),
        (("--upstream-cert-file", "KEY"), "--upstream-cert-file and --upstream-key-file need each other"),
        (("--tls-worker-ca-file", "KEY"), "--tls-worker-ca-file needs --tls-cert-file and --tls-key-file"),
        (("--upstream-api-key-file", "KEY"), "an API key is not sent in plain text"),
        (
            ("--upstream-api-key-file", "KEY", "--upstream-tls", "--listen", "0.0.0.0:7233"),
            "everyone who can connect to 0.0.0.0:7233 would use the bridge's own credential",
        ),
        (("--restart-allowance", "soon"), "--restart-allowance is 'soon', but must be a duration"),
        (("--skip", "a,,b"), "--skip is 'a,,b', but must be task queues"),
        (
            ("--upstream-server-name", "a b"),
            "--upstream-server-name is 'a b', but must be the name of a host",
        ),
        (("--upstream-ca-file", "missing"), "--upstream-ca-file: missing cannot be read"),
        (("--upstream-ca-file", "KEY"), "key has no certificate in PEM format"),
        (
            ("--upstream-cert-file", "KEY", "--upstream-key-file", "KEY"),
            "--upstream-cert-file and --upstream-key-file are not a certificate and its key",
        ),
        (
            ("--tls-cert-file", "KEY", "--tls-key-file", "KEY"),
            "--tls-cert-file and --tls-key-file are not a certificate and its key",
        ),
        (("--upstream-tls", "--upstream-api-key-file", "/dev/null"), "/dev/null is empty"),
        (("--listen", "t:7233"), "the bridge would call itself at t:7233"),
        (("--upstream", "127.0.0.1:7233"), "the bridge would call itself at 127.0.0.1:7233"),
        (
            ("--upstream", "a:1,localhost:7233", "--listen", "0.0.0.0:7233"),
            "the bridge would call itself at 0.0.0.0:7233",
        ),
    ],
)
def test_wrong_flags_are_refused_in_one_sentence(
    settings: MakeSettings, arguments: tuple[str, ...], why: str, tmp_path: Path
) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("secret")
    with pytest.raises((UsageError, BridgeUnusable)) as raised:
        settings(*(str(key_file) if argument == "KEY" else argument for argument in arguments))
    error = raised.value
    message = error.message if isinstance(error, UsageError) else str(error)
    assert why in message.replace("--bridge-temporal ", "--upstream ").replace("--bridge-", "--")
    assert ("--bridge-" in message) is (settings is server_settings)


def test_a_bridge_that_is_described_but_not_asked_for_is_refused() -> None:
    with pytest.raises(SettingsError, match="bridge_hints is set, but there is no Temporal to bridge to"):
        Settings(bridge_hints="off")


def test_the_command_needs_an_upstream() -> None:
    answer = CliRunner().invoke(main, ["bridge", "temporal"])
    assert answer.exit_code == 2
    assert "--upstream" in answer.output


@pytest.mark.parametrize("flag", ["--log-level", "--log-format"])
def test_the_command_refuses_unknown_words_for_its_log(flag: str) -> None:
    answer = CliRunner().invoke(main, ["bridge", "temporal", "--upstream", "t:7233", flag, "loud"])
    assert answer.exit_code == 2
    assert "'loud' is not one of" in answer.output


def test_an_activity_links_to_its_workflow() -> None:
    activity = ActivityRef(workflow_id="order/7", run_id="run", activity_id="1@1")
    worker = Worker(namespace="shop", labels={"temporal-ui": "https://ui.example"})
    assert temporal_link(worker, activity) == "https://ui.example/namespaces/shop/workflows/order%2F7/run"
    standalone = ActivityRef(workflow_id="charge 7", run_id="run", activity_id="@1")
    assert temporal_link(worker, standalone) == "https://ui.example/namespaces/shop/activities/charge%207/run"
    assert temporal_link(Worker(labels={"temporal-ui": "javascript:alert(1)"}), activity) == ""
    assert temporal_link(Worker(), activity) == ""
