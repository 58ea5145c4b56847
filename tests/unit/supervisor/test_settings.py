"""Settings of groups: all keys, the messages about wrong ones, and what a reload does."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.config.settings import SettingsError
from liveness.domain.component import ProcessExit
from liveness.supervisor.settings import (
    CheckSettings,
    ExitMeaning,
    GroupSettings,
    Health,
    OutputSettings,
    ReloadStep,
    RestartSettings,
    SupervisorSettings,
    differences,
)
from liveness.supervisor.settings_file import (
    CHECK_KEYS,
    GROUP_KEYS,
    OUTPUT_KEYS,
    RESTART_KEYS,
    TABLES,
    _group,
    _Place,
    load_supervisor_settings,
    parse_supervisor_settings,
    settings_from_flags,
)

EVERYTHING = """
[group.discovery]
command = "python worker.py --name 'a b'"
processes = 4
environment = { MODE = "fast" }
directory = "/srv"
user = "worker"
task_queue = "files"
build_id = "v7"
labels = { zone = "a" }
lease = "20s"
health = "pipe"
health_timeout = 12.5
start_timeout = "2m"
ready_after = 0
stop_signal = "SIGINT"
stop_timeout = "1m30s"
pause_signal = "SIGUSR1"
resume_signal = "SIGUSR2"
snapshot_interval = 60

[group.discovery.restart]
min_delay = "500ms"
max_delay = 30
jitter = 0
window = "10m"
window_limit = 3
total_limit = 9
reset_after = "1h"

[group.discovery.exit_codes]
0 = "restart"
-1 = "failed"
7 = "restart-now"
SIGKILL = "done"

[group.discovery.readiness]
http = "http://127.0.0.1:8000/ready"
interval = "1s"
timeout = "500ms"
failures = 1
successes = 2

[group.discovery.liveness]
command = ["check", "it"]

[group.discovery.output]
directory = "/var/log/workers"
max_bytes = 4096
files = 2

[group.other]
command = ["run"]
"""
SMALL = GroupSettings(name="g", command=("run",))


def parsed(text: str) -> tuple[GroupSettings, ...]:
    return parse_supervisor_settings(text, "workers.toml").groups


def refusal(text: str) -> str:
    with pytest.raises(SettingsError) as caught:
        parsed(text)
    return str(caught.value)


def test_every_setting_can_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "workers.toml"
    file.write_text(EVERYTHING)
    assert load_supervisor_settings(file).groups == (
        GroupSettings(
            name="discovery",
            command=("python", "worker.py", "--name", "a b"),
            processes=4,
            environment={"MODE": "fast"},
            directory="/srv",
            user="worker",
            task_queue="files",
            build_id="v7",
            labels={"zone": "a"},
            lease_ms=20_000,
            health=Health.PIPE,
            health_timeout_ms=12_500,
            start_timeout_ms=120_000,
            ready_after_ms=0,
            stop_signal="SIGINT",
            stop_timeout_ms=90_000,
            pause_signal="SIGUSR1",
            resume_signal="SIGUSR2",
            restart=RestartSettings(500, 30_000, 0.0, 600_000, 3, 9, 3_600_000),
            exit_codes={
                0: ExitMeaning.RESTART,
                255: ExitMeaning.FAILED,
                7: ExitMeaning.RESTART_NOW,
                "SIGKILL": ExitMeaning.DONE,
            },
            readiness=CheckSettings("http://127.0.0.1:8000/ready", "", (), 1_000, 500, 1, 2),
            liveness=CheckSettings(command=("check", "it")),
            output=OutputSettings("/var/log/workers", 4_096, 2),
            snapshot_interval_ms=60_000,
        ),
        GroupSettings(name="other", command=("run",)),
    )


def test_every_setting_has_a_key() -> None:
    names = {each.name.removesuffix("_ms") for each in fields(GroupSettings)}
    assert names == {"name", *GROUP_KEYS, *TABLES}


def test_the_task_queue_is_named_after_the_group() -> None:
    assert SMALL.task_queue == "g"


def test_what_exits_mean() -> None:
    (group,) = parsed('[group.g]\ncommand = "run"\nexit_codes = { -3 = "failed", SIGTERM = "done" }')
    meanings = [
        group.meaning_of(ended)
        for ended in (
            ProcessExit(0),
            ProcessExit(253),
            ProcessExit(None, "SIGTERM"),
            ProcessExit(1),
            ProcessExit(),
        )
    ]
    assert meanings == ["done", "failed", "done", "restart", "restart"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("proceses = 1", "key proceses of group g in workers.toml is not a setting; did you mean processes?"),
        ("processes = 10001", "key processes of group g in workers.toml is 10001, but must be a whole number from 0 to 10000."),
        ("processes = true", "key processes of group g in workers.toml is True, but must be a whole number from 0 to 10000."),
        ('health = "tcp"', "key health of group g in workers.toml is 'tcp', but must be one of auto, pipe, notify, process."),
        ('lease = "fast"', "key lease of group g in workers.toml is 'fast', but must be a duration of at least 1000 ms like \"10s\" or \"5m\", or a number of seconds."),
        ("stop_timeout = -1", 'key stop_timeout of group g in workers.toml is -1, but must be a duration like "10s" or "5m", or a number of seconds.'),
        ("stop_timeout = inf", 'key stop_timeout of group g in workers.toml is inf, but must be a duration like "10s" or "5m", or a number of seconds.'),
        ('stop_signal = "TERM"', "key stop_signal of group g in workers.toml is 'TERM', but must be the name of a signal, like SIGTERM or SIGUSR1."),
        ('pause_signal = "SIGSTOP"', "key pause_signal of group g in workers.toml is set without resume_signal; set both, or neither."),
        ('resume_signal = "SIGCONT"', "key resume_signal of group g in workers.toml is set without pause_signal; set both, or neither."),
        ('pause_signal = "SIGHUP"\nresume_signal = "SIGHUP"', "key resume_signal of group g in workers.toml is 'SIGHUP' like pause_signal; choose another signal."),
        ("ready_after = 31", "key ready_after of group g in workers.toml is longer than start_timeout; make it shorter."),
        ("restart = 5", "key restart of group g in workers.toml is 5, but must be a table of settings."),
        ("restart = { window_limits = 5 }", "key restart.window_limits of group g in workers.toml is not a setting; did you mean window_limit?"),
        ("restart = { window_limit = 101 }", "key restart.window_limit of group g in workers.toml is 101, but must be a whole number from 0 to 100."),
        ("restart = { jitter = 1.5 }", "key restart.jitter of group g in workers.toml is 1.5, but must be a number from 0 to 1."),
        ("restart = { max_delay = 0.5 }", "key restart.max_delay of group g in workers.toml makes min_delay (1 s) longer than max_delay (0.5 s); change one of them."),
        ('exit_codes = { 256 = "done" }', "key exit_codes.256 of group g in workers.toml is no exit code; write a number from -255 to 255."),
        ('exit_codes = { SIGKIL = "done" }', "key exit_codes.SIGKIL of group g in workers.toml is neither an exit code nor a signal; did you mean SIGKILL?"),
        ('exit_codes = { KILL = "done" }', "key exit_codes.KILL of group g in workers.toml is neither an exit code nor a signal; did you mean SIGKILL?"),
        ('exit_codes = { 1 = "ignore" }', "key exit_codes.1 of group g in workers.toml is 'ignore', but must be one of done, restart, restart-now, failed."),
        ("exit_codes = { 1 = [] }", "key exit_codes.1 of group g in workers.toml is [], but must be one of done, restart, restart-now, failed."),
        ('exit_codes = { -1 = "done", 255 = "failed" }', "key exit_codes.255 of group g in workers.toml means the same exit as -1; keep one of them."),
        ("readiness = { interval = 1 }", "table readiness of group g in workers.toml has nothing to check; set one of http, tcp and command."),
        ('liveness = { tcp = "a:1", http = "http://a" }', "table liveness of group g in workers.toml has http and tcp; set one of http, tcp and command."),
        ('liveness = { tcp = "a" }', "key liveness.tcp of group g in workers.toml is 'a', but must be HOST:PORT."),
        ('output = { file = "a" }', "key output.file of group g in workers.toml is not a setting; did you mean files?"),
        ('environment = { PASSWORD = 7 }', 'key environment of group g in workers.toml is set to something else, but must be a table of texts, like { MODE = "fast" }.'),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_in_one_sentence(line: str, message: str) -> None:
    assert refusal(f'[group.g]\ncommand = "run"\n{line}\n') == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no group in workers.toml; write one as [group.NAME] with its command."),
        ("[groups.g]", "key groups in workers.toml is not a setting; write the settings of each group below [group.NAME]."),
        ("group = 1", "key group in workers.toml must be tables; write [group.NAME] above each group's settings."),
        ('[group]\ncommand = "run"', "key group in workers.toml must be tables; write [group.NAME] above each group's settings."),
        ("[group.g]", 'key command of group g in workers.toml is missing; write what to run, like command = "python worker.py".'),
        ("[group.g]\ncommand = []", "key command of group g in workers.toml is [], but must be a command, as a text or a list of texts, with all quotes closed."),
        ("""[group.g]\ncommand = "a 'b" """, "key command of group g in workers.toml is \"a 'b\", but must be a command, as a text or a list of texts, with all quotes closed."),
        ('[group."a b"]\ncommand = "run"', "the name of group 'a b' in workers.toml must be up to 100 letters, digits, _, . and -, with a letter or digit first; rename it."),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_in_one_sentence(text: str, message: str) -> None:
    assert refusal(text) == message


def test_two_groups_of_one_name_are_refused() -> None:
    text = refusal('[group.g]\ncommand = "run"\n[group.g]\ncommand = "run"\n')
    assert text.startswith("the configuration file workers.toml is not valid TOML: ")
    assert text.endswith("; give each group its own name.")
    with pytest.raises(SettingsError, match="there are two groups named g; rename one of them"):
        SupervisorSettings((SMALL, SMALL))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.toml cannot be read: No such file or directory\."):
        load_supervisor_settings(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(SettingsError, match=r"bytes\.toml is not UTF-8 text\."):
        load_supervisor_settings(tmp_path / "bytes.toml")


def test_flags_describe_one_group() -> None:
    (group,) = settings_from_flags("discovery", ["python", "worker.py"], "4").groups
    assert group == GroupSettings(name="discovery", command=("python", "worker.py"), processes=4)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("a:b", ["run"]), "flag --name is 'a:b', but must be up to 100 letters, digits, _, . and -, with a letter or digit first."),
        (("g", []), "there is no command to run; write it after --, like: -- python worker.py."),
        (("g", [""]), "the command after -- starts with an empty word; write the program first."),
        (("g", ["run"], "many"), "flag --processes is 'many', but must be a whole number from 0 to 10000."),
    ],
)  # fmt: skip
def test_wrong_flags_are_refused(flags: tuple[Any, ...], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings_from_flags(*flags)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("change", "steps"),
    [
        ({}, ()),
        ({"processes": 3}, (ReloadStep.COUNT,)),
        ({"command": ("other",)}, (ReloadStep.RESTART,)),
        ({"environment": {"A": "b"}}, (ReloadStep.RESTART,)),
        ({"health": Health.PIPE}, (ReloadStep.RESTART,)),
        ({"stop_timeout_ms": 1}, (ReloadStep.LIMITS,)),
        ({"restart": RestartSettings(window_limit=1)}, (ReloadStep.LIMITS,)),
        (
            {"processes": 0, "user": "x", "lease_ms": 9_000},
            (ReloadStep.LIMITS, ReloadStep.COUNT, ReloadStep.RESTART),
        ),
    ],
)
def test_a_reload_changes_only_what_differs(change: dict[str, Any], steps: tuple[ReloadStep, ...]) -> None:
    new = replace(SMALL, **change)
    (difference,) = differences(SupervisorSettings((SMALL,)), SupervisorSettings((new,)))
    assert (difference.steps, difference.changed, difference.new) == (steps, tuple(sorted(change)), new)


def test_a_reload_stops_and_starts_whole_groups() -> None:
    old, new = (
        SupervisorSettings((SMALL, replace(SMALL, name="b"))),
        SupervisorSettings((replace(SMALL, name="c"), SMALL)),
    )
    assert [(change.name, change.steps) for change in differences(old, new)] == [
        ("b", (ReloadStep.STOP,)),
        ("c", (ReloadStep.START,)),
        ("g", ()),
    ]


VALUES = st.recursive(
    st.none().map(lambda _: "x") | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["10s", "SIGTERM", "pipe", "done", "http://[", "a:1", "\0", "1e400s", 2**63]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
KEYS = (
    *GROUP_KEYS,
    *TABLES,
    *(f"restart.{key}" for key in RESTART_KEYS),
    *(f"{table}.{key}" for table in ("readiness", "liveness") for key in CHECK_KEYS),
    *(f"output.{key}" for key in OUTPUT_KEYS),
    *(f"exit_codes.{key}" for key in ("0", "-1", "SIGKILL", "x")),
)


@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=5))
def test_any_file_gives_settings_or_one_sentence(given_values: dict[str, Any]) -> None:
    table: dict[str, Any] = {"command": "run"}
    for key, value in given_values.items():
        outer, _, inner = key.rpartition(".")
        if outer and isinstance(table.setdefault(outer, {}), dict):
            table[outer][inner] = value
        elif not outer:
            table[key] = value
    try:
        said = f"key command is {_group('g', table, _Place('of group g in workers.toml')).command}"
    except SettingsError as error:
        said = str(error)
    assert said.startswith(("key ", "table "))
