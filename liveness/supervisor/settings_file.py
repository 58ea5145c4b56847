"""Reads the settings of supervised groups from a TOML file with one table `[group.NAME]` per group, or from flags.

Every mistake is a `SettingsError`: one sentence that names the file, the group and the key, and says what to write instead.
"""

from __future__ import annotations

import re
import shlex
import signal
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from liveness.config.durations import DURATION_MS_MAX, parse_ms
from liveness.config.formats import is_address, is_name, is_webhook_url
from liveness.config.setting_types import (
    SettingsError,
    SettingType,
    choice_setting,
    float_setting,
    int_setting,
    string_setting,
)
from liveness.config.settings import suggestion
from liveness.domain.component import GROUP_NAME, RESTARTS_MAX
from liveness.supervisor.settings import (
    DEFAULT_EXIT_CODES,
    PROCESSES_MAX,
    CheckSettings,
    ExitMeaning,
    GroupSettings,
    Health,
    OutputSettings,
    RestartSettings,
    SupervisorSettings,
)

SIGNAL_NAMES = frozenset(each.name for each in signal.Signals)
GROUP_NAME_RULE = "up to 100 letters, digits, _, . and -, with a letter or digit first"


def _command(value: object, *, text: bool) -> tuple[str, ...] | None:
    if isinstance(value, str):
        try:
            value = shlex.split(value)
        except ValueError:
            return None
    if not isinstance(value, list | tuple) or not value or not value[0]:
        return None
    return tuple(value) if all(isinstance(part, str) and "\0" not in part for part in value) else None


def _duration(low_ms: int) -> SettingType:
    def parse(value: object, *, text: bool) -> int | None:
        if isinstance(value, str):
            ms = parse_ms(value)
        elif isinstance(value, bool) or not isinstance(value, int | float):
            return None
        else:
            # Larger numbers, infinity and nan are none of these.
            ms = round(value * 1_000) if 0 <= value <= DURATION_MS_MAX / 1_000 else None
        return ms if ms is not None and low_ms <= ms else None

    low = f" of at least {low_ms} ms" if low_ms else ""
    return SettingType(parse, f'a duration{low} like "10s" or "5m", or a number of seconds')


def _texts(is_key: Callable[[str], bool], expected: str) -> SettingType:
    def parse(value: object, *, text: bool) -> dict[str, str] | None:
        if not isinstance(value, dict):
            return None
        good = all(is_key(key) and isinstance(each, str) and "\0" not in each for key, each in value.items())
        return value if good else None

    return SettingType(parse, expected)


_COMMAND = SettingType(_command, "a command, as a text or a list of texts, with all quotes closed")
_SIGNAL = string_setting(SIGNAL_NAMES.__contains__, "the name of a signal, like SIGTERM or SIGUSR1")
_PATH = string_setting(lambda text: "\0" not in text, "the name of a directory")
_NOT_ZERO, _ANY_TIME = _duration(1), _duration(0)

GROUP_KEYS: Mapping[str, SettingType] = {
    "command": _COMMAND,
    "processes": int_setting(0, PROCESSES_MAX),
    "environment": _texts(
        lambda key: key != "" and not set(key) & {"=", "\0"}, 'a table of texts, like { MODE = "fast" }'
    ),
    "directory": _PATH,
    "user": string_setting(lambda text: text != "" and text.isprintable(), "the name of a user"),
    "task_queue": string_setting(is_name, "the name of a task queue"),
    "build_id": string_setting(str.isprintable, "a text"),
    "labels": _texts(bool, 'a table of texts, like { zone = "a" }'),
    "lease": _duration(1_000),
    "health": choice_setting(*Health),
    "health_timeout": _NOT_ZERO,
    "start_timeout": _NOT_ZERO,
    "ready_after": _ANY_TIME,
    "stop_signal": _SIGNAL,
    "stop_timeout": _ANY_TIME,
    "pause_signal": _SIGNAL,
    "resume_signal": _SIGNAL,
    "snapshot_interval": _duration(1_000),
}
RESTART_KEYS: Mapping[str, SettingType] = {
    "min_delay": _ANY_TIME,
    "max_delay": _ANY_TIME,
    "jitter": float_setting(0, 1),
    "window": _NOT_ZERO,
    "window_limit": int_setting(0, RESTARTS_MAX),
    "total_limit": int_setting(0, 10**9),
    "reset_after": _NOT_ZERO,
}
CHECK_KEYS: Mapping[str, SettingType] = {
    "http": string_setting(
        lambda text: text.startswith("http://") and is_webhook_url(text), "http://HOST:PORT/PATH"
    ),
    "tcp": string_setting(is_address, "HOST:PORT"),
    "command": _COMMAND,
    "interval": _NOT_ZERO,
    "timeout": _NOT_ZERO,
    "failures": int_setting(1, 1_000),
    "successes": int_setting(1, 1_000),
}
OUTPUT_KEYS: Mapping[str, SettingType] = {
    "directory": _PATH,
    "max_bytes": int_setting(1_024, 2**40),
    "files": int_setting(1, 1_000),
}
TABLES = ("restart", "exit_codes", "readiness", "liveness", "output")
_DURATIONS = frozenset((_NOT_ZERO, _ANY_TIME, GROUP_KEYS["lease"], GROUP_KEYS["snapshot_interval"]))


def load_supervisor_settings(path: Path) -> SupervisorSettings:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"the configuration file {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"the configuration file {path} is not UTF-8 text.") from error
    return parse_supervisor_settings(text, str(path))


def parse_supervisor_settings(text: str, file: str) -> SupervisorSettings:
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        twice = "; give each group its own name" if "twice" in str(error) else ""
        raise SettingsError(f"the configuration file {file} is not valid TOML: {error}{twice}.") from error
    for key in content:
        if key != "group":
            raise SettingsError(
                f"key {key} in {file} is not a setting; write the settings of each group below [group.NAME]."
            )
    groups = content.get("group", {})
    if not isinstance(groups, dict) or not all(isinstance(table, dict) for table in groups.values()):
        raise SettingsError(
            f"key group in {file} must be tables; write [group.NAME] above each group's settings."
        )
    if not groups:
        raise SettingsError(f"there is no group in {file}; write one as [group.NAME] with its command.")
    return SupervisorSettings(
        tuple(_group(name, table, _Place(f"of group {name} in {file}")) for name, table in groups.items())
    )


def settings_from_flags(name: str, command: Sequence[str], processes: str | int = 1) -> SupervisorSettings:
    """Of `supervise --name NAME --processes N -- COMMAND`; a text for `processes` is parsed."""
    if not GROUP_NAME.fullmatch(name):
        raise SettingsError(f"flag --name is {name!r}, but must be {GROUP_NAME_RULE}.")
    if not command:
        raise SettingsError("there is no command to run; write it after --, like: -- python worker.py.")
    rule = GROUP_KEYS["processes"]
    count = rule.parse(processes, text=True)
    if count is None:
        raise SettingsError(f"flag --processes is {processes!r}, but must be {rule.expected}.")
    words = _command(list(command), text=True)
    if words is None:
        raise SettingsError("the command after -- starts with an empty word; write the program first.")
    return SupervisorSettings((GroupSettings(name=name, command=words, processes=count),))


class _Place:
    """Where keys are, for messages about them."""

    def __init__(self, text: str, table: str = "") -> None:
        self.text, self.table = text, table

    def label(self, key: str) -> str:
        return f"key {self.table}{key} {self.text}"

    def wrong(self, key: str, problem: str) -> SettingsError:
        return SettingsError(f"{self.label(key)} {problem}")

    def below(self, table: str) -> _Place:
        return _Place(self.text, f"{self.table}{table}.")


def _group(name: str, table: Mapping[str, Any], place: _Place) -> GroupSettings:
    if not GROUP_NAME.fullmatch(name):
        file = place.text.removeprefix(f"of group {name} ")
        raise SettingsError(f"the name of group {name!r} {file} must be {GROUP_NAME_RULE}; rename it.")
    _check_names(table, (*GROUP_KEYS, *TABLES), place)
    values = _values({key: value for key, value in table.items() if key not in TABLES}, GROUP_KEYS, place)
    if "command" not in values:
        raise place.wrong("command", 'is missing; write what to run, like command = "python worker.py".')
    if "health" in values:
        values["health"] = Health(values["health"])
    for key in TABLES:
        if key in table and not isinstance(table[key], dict):
            raise place.wrong(key, f"is {table[key]!r}, but must be a table of settings.")
    if "restart" in table:
        values["restart"] = _restart(table["restart"], place.below("restart"))
    if "exit_codes" in table:
        values["exit_codes"] = _exit_codes(table["exit_codes"], place.below("exit_codes"))
    for key in ("readiness", "liveness"):
        if key in table:
            values[key] = _check(table[key], place.below(key))
    if "output" in table:
        below = place.below("output")
        _check_names(table["output"], OUTPUT_KEYS, below)
        values["output"] = OutputSettings(**_values(table["output"], OUTPUT_KEYS, below))
    group = GroupSettings(name=name, **values)
    _check_together(group, place)
    return group


def _check_together(group: GroupSettings, place: _Place) -> None:
    if (group.pause_signal is None) != (group.resume_signal is None):
        given, missing = ("pause_signal", "resume_signal")[:: 1 if group.pause_signal else -1]
        raise place.wrong(given, f"is set without {missing}; set both, or neither.")
    if group.pause_signal is not None and group.pause_signal == group.resume_signal:
        raise place.wrong(
            "resume_signal", f"is {group.resume_signal!r} like pause_signal; choose another signal."
        )
    if group.ready_after_ms > group.start_timeout_ms:
        raise place.wrong("ready_after", "is longer than start_timeout; make it shorter.")


def _restart(table: Mapping[str, Any], place: _Place) -> RestartSettings:
    _check_names(table, RESTART_KEYS, place)
    restart = RestartSettings(**_values(table, RESTART_KEYS, place))
    if restart.min_delay_ms > restart.max_delay_ms:
        key = "min_delay" if "min_delay" in table else "max_delay"
        raise place.wrong(
            key,
            f"makes min_delay ({restart.min_delay_ms / 1_000:g} s) longer than max_delay "
            f"({restart.max_delay_ms / 1_000:g} s); change one of them.",
        )
    return restart


def _check(table: Mapping[str, Any], place: _Place) -> CheckSettings:
    _check_names(table, CHECK_KEYS, place)
    kinds = [key for key in ("http", "tcp", "command") if key in table]
    if len(kinds) != 1:
        wrong = f"has {' and '.join(kinds)}" if kinds else "has nothing to check"
        raise SettingsError(
            f"table {place.table[:-1]} {place.text} {wrong}; set one of http, tcp and command."
        )
    return CheckSettings(**_values(table, CHECK_KEYS, place))


def _exit_codes(table: Mapping[str, Any], place: _Place) -> dict[int | str, ExitMeaning]:
    codes: dict[int | str, ExitMeaning] = {}
    written: dict[int | str, str] = {}
    for key, value in table.items():
        code = _exit_code(key, place)
        if code in written:
            raise place.wrong(key, f"means the same exit as {written[code]}; keep one of them.")
        if value not in tuple(ExitMeaning):
            raise place.wrong(key, f"is {value!r}, but must be one of {', '.join(ExitMeaning)}.")
        codes[code], written[code] = ExitMeaning(value), key
    return {**DEFAULT_EXIT_CODES, **codes}


def _exit_code(key: str, place: _Place) -> int | str:
    """A program that exits with -1 is seen to exit with 255: only the lowest 8 bits arrive."""
    if key in SIGNAL_NAMES:
        return key
    if re.fullmatch(r"-?[0-9]{1,3}", key) and -255 <= int(key) <= 255:
        return int(key) % 256
    if key.isascii() and re.fullmatch(r"-?[0-9]+", key):
        raise place.wrong(key, "is no exit code; write a number from -255 to 255.")
    hint = suggestion(key.upper() if key.upper().startswith("SIG") else f"SIG{key.upper()}", SIGNAL_NAMES)
    hint = hint if hint.startswith("did") else "write a number from -255 to 255 or a name like SIGKILL."
    raise place.wrong(key, f"is neither an exit code nor a signal; {hint}")


def _check_names(table: Mapping[str, Any], known: Iterable[str], place: _Place) -> None:
    for key in table:
        if key not in known:
            raise place.wrong(key, f"is not a setting; {suggestion(key, known)}")


def _values(table: Mapping[str, Any], rules: Mapping[str, SettingType], place: _Place) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, raw in table.items():
        rule = rules[key]
        value = rule.parse(raw, text=False)
        if value is None:
            shown = "set to something else" if key == "environment" else f"{raw!r}"
            raise place.wrong(key, f"is {shown}, but must be {rule.expected}.")
        values[f"{key}_ms" if rule in _DURATIONS else key] = value
    return values
