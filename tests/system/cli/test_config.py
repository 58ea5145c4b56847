"""`liveness config` and `liveness shards` against a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.cli.shell import Shell


def table(text: str) -> dict[str, tuple[str, str]]:
    """Return setting → value and its source."""
    rows = [line.split() for line in text.splitlines()[1:]]
    return {name: (value, source) for name, value, source in rows}


@pytest.fixture
def default_restored(shell: Shell) -> Iterator[None]:
    yield
    shell.ok("config", "set", "--default", "--unset", "event_retention", "--unset", "max_workers")


def test_all_settings_are_built_in_at_first(shell: Shell) -> None:
    settings = table(shell.ok("config", "get"))
    assert settings["default_lease"] == ("30s", "built-in")
    assert settings["tombstone_retention"] == ("30d", "built-in")
    assert {source for _, source in settings.values()} == {"built-in"}


def test_a_setting_applies_at_once_and_can_be_unset(shell: Shell) -> None:
    changed = table(
        shell.ok("config", "set", "cleanup_delay=1h30m", "max-workers=7", "worker_heartbeat_rate=2.5")
    )
    assert changed["cleanup_delay"] == ("1h30m", "here")
    assert changed["max_workers"] == ("7", "here")
    assert changed["worker_heartbeat_rate"] == ("2.5", "here")
    assert table(shell.ok("config", "get")) == changed
    inherited = table(shell.ok("config", "set", "--unset", "cleanup_delay", "--unset", "max-workers"))
    assert inherited["cleanup_delay"] == ("1h", "built-in")
    assert inherited["worker_heartbeat_rate"] == ("2.5", "here")


def test_the_server_decides_by_a_changed_setting(shell: Shell) -> None:
    shell.ok("config", "set", "default_lease=250ms", "min_lease=100ms")
    assert shell.heartbeat("w").granted_lease_duration.ToMilliseconds() == 250


def test_settings_of_activities_can_be_changed(shell: Shell) -> None:
    built_in = table(shell.ok("config", "get"))
    assert built_in["max_worker_deaths"] == ("3", "built-in")
    assert built_in["activity_retention"] == ("7d", "built-in")
    assert built_in["dispatch_timeout"] == ("10s", "built-in")
    assert built_in["paused"] == ("0", "built-in")
    changes = ("max_worker_deaths=0", "activity-retention=1h", "dispatch_timeout=250ms", "paused=1")
    changed = table(shell.ok("config", "set", *changes))
    assert changed["max_worker_deaths"] == ("0", "here")
    assert changed["activity_retention"] == ("1h", "here")
    assert changed["dispatch_timeout"] == ("250ms", "here")
    assert changed["paused"] == ("1", "here")
    assert shell.heartbeat("w").pause
    assert table(shell.ok("config", "set", "--unset", "paused"))["paused"] == ("0", "built-in")
    assert not shell.heartbeat("w").pause


def test_a_namespace_pause_is_true_or_false(shell: Shell) -> None:
    assert shell.sentence("config", "set", "paused=2") == "paused must be 0 or 1 (INVALID_FIELD)."
    assert shell.sentence("config", "set", "dispatch_timeout=0").endswith(
        "must be more than 0 (INVALID_FIELD)."
    )


def test_namespaces_inherit_the_default(shell: Shell, default_restored: None) -> None:
    assert table(shell.ok("config", "set", "--default", "event_retention=0"))["event_retention"] == (
        "0s",
        "here",
    )
    assert table(shell.ok("config", "get", "event_retention"))["event_retention"] == ("0s", "default")
    assert table(shell.ok("config", "set", "event_retention=1d"))["event_retention"] == ("1d", "here")
    assert table(shell.ok("config", "get", "--default"))["event_retention"] == ("0s", "here")


def test_one_setting_as_json(shell: Shell) -> None:
    shell.ok("config", "set", "cleanup_delay=250ms")
    assert shell.json("config", "get", "cleanup-delay") == {
        "key": "cleanup_delay",
        "value": "0.250s",
        "source": "here",
    }


def test_all_settings_as_json(shell: Shell) -> None:
    everything = shell.json("config", "set", "max_workers=5", "cleanup_delay=0")
    assert everything["namespace"] == shell.namespace
    assert everything["effective"]["default_lease"] == "30s"
    assert everything["overrides"] == {"max_workers": "5", "cleanup_delay": "0s"}
    assert everything["sources"]["max_workers"] == "here"


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ([], "give at least one KEY=VALUE or --unset KEY"),
        (["cleanup_dely=5m"], "there is no setting cleanup_dely; did you mean cleanup_delay?"),
        (["--unset", "max_worker"], "there is no setting max_worker; did you mean max_workers?"),
        (["cleanup_delay"], ("cleanup_delay has no value; write cleanup_delay=VALUE, or --unset cleanup_delay to "
                            "inherit it again")),
        (["max_workers=1", "max-workers=2"], "max_workers is given twice"),
        (["max_workers=1", "--unset", "max_workers"], "max_workers cannot be set and unset at once"),
        (["cleanup_delay=soon"], ("cleanup_delay is 'soon', but must be a duration in whole milliseconds like 250ms, "
                                 "30s, 5m, 1h or 30d, at most 100 years")),
        (["cleanup_delay="], ("cleanup_delay is '', but must be a duration in whole milliseconds like 250ms, 30s, 5m, "
                             "1h or 30d, at most 100 years")),
        (["max_workers=-1"], "max_workers is '-1', but must be a whole number, 0 or more"),
        (["max_workers=9223372036854775808"], ("max_workers is '9223372036854775808', but must be a whole number, "
                                              "0 or more")),
        (["worker_heartbeat_rate=nan"], "worker_heartbeat_rate is 'nan', but must be a number, 0 or more"),
        (["max_workers=1", "--default", "-n", "x"], ("--default is for all namespaces and cannot be combined with "
                                                    "--namespace")),
    ],
)  # fmt: skip
def test_an_invalid_value_is_reported_in_one_sentence(args: list[str], sentence: str) -> None:
    assert Shell().sentence("config", "set", *args, exit_code=2) == sentence


def test_a_rejected_value_is_reported_in_one_sentence_and_changes_nothing(shell: Shell) -> None:
    assert shell.sentence("config", "set", "default_lease=0", "max_workers=3").endswith("(INVALID_FIELD).")
    assert table(shell.ok("config", "get"))["max_workers"] == ("1000000", "built-in")


def test_an_unknown_setting_cannot_be_shown() -> None:
    sentence = "there is no setting lease; did you mean min_lease?"
    assert Shell().sentence("config", "get", "lease", exit_code=2).split(";")[0] == sentence.split(";")[0]


def test_every_shard_is_listed(shell: Shell) -> None:
    head, *rows = [line.split() for line in shell.ok("shards", "list").splitlines()]
    assert head[:5] == ["shard", "serving", "owner", "address", "epoch"]
    [node] = shell.json("nodes", "list")
    owner = [node["node_id"], node["address"]]
    assert [row[:5] for row in rows] == [["0", "yes", *owner, "1"], ["1", "yes", *owner, "1"]]
    assert [shard["serving"] for shard in shell.json("shards", "list")] == [True, True]
