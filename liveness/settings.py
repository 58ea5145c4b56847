"""How a server is set up, and where a client finds one. Read once at start; nothing else reads the environment.

A value is taken from the first place that has it: flag, LIVENESS_* variable, TOML file, built-in default.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import msgspec

PREFIX = "LIVENESS_"
TEST_PREFIX = "LIVENESS_TEST_"
CONFIG_VARIABLE = "LIVENESS_CONFIG"
DAY_S = 86_400


class SettingsError(Exception):
    """A setting cannot be used. The message is one sentence for the person who set it."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    db: str = "sqlite:///liveness.db"
    listen: str = "127.0.0.1:7400"
    shards: int = 64
    """Fixed when the database is created."""
    reflection: bool = True
    """Let tools ask the server which calls it knows."""
    log_level: str = "info"
    log_format: str = "auto"
    """auto: console on a terminal, else JSON."""
    commit_interval_ms: float = 20.0
    """How long heartbeats may wait for others to be committed together with them."""
    takeover_grace_ms: int = 10_000
    """Observed time after a start in which no lease ends, so that clients can come back."""
    checkpoint_interval_s: float = 60.0
    retention_interval_s: float = 3_600.0
    task_retention_s: float = 7.0 * DAY_S
    """How long finished tasks are kept."""
    task_attempts_max: int = 20
    """A task that failed this often is dead-lettered."""
    shutdown_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        for name, rule in RULES.items():
            value = getattr(self, name)
            if rule.value_of(value, text=False) is None:
                raise SettingsError(_sentence(f"setting {name}", value, rule))

    @property
    def sqlite_path(self) -> Path | None:
        """None on PostgreSQL."""
        return Path(self.db.removeprefix(_SQLITE)) if self.db.startswith(_SQLITE) else None

    @property
    def db_for_people(self) -> str:
        """Without the password."""
        return without_password(self.db)


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    address: str = "127.0.0.1:7400"
    namespace: str = "default"


# -- rules


@dataclass(frozen=True, slots=True)
class Rule:
    """What a setting may be. `value_of` answers None for what it may not be; `text` tells that the value was written
    where everything is text, so that "64" is a number there, but not in a TOML file."""

    value_of: Callable[..., Any]
    says: str


def _text(accepts: Callable[[str], bool], says: str) -> Rule:
    def value_of(value: object, *, text: bool) -> str | None:
        return value if isinstance(value, str) and accepts(value) else None

    return Rule(value_of, says)


def _one_of(*choices: str) -> Rule:
    return _text(choices.__contains__, f"one of {', '.join(choices)}")


def _switch() -> Rule:
    words = {
        "true": True,
        "1": True,
        "yes": True,
        "on": True,
        "false": False,
        "0": False,
        "no": False,
        "off": False,
    }

    def value_of(value: object, *, text: bool) -> bool | None:
        if text and isinstance(value, str):
            return words.get(value.lower())
        return value if isinstance(value, bool) else None

    return Rule(value_of, "true or false")


def _whole(low: int, high: int) -> Rule:
    def value_of(value: object, *, text: bool) -> int | None:
        if text and isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value):
            value = int(value)
        # A bool is an int to Python, but not to people.
        return (
            value if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high else None
        )

    return Rule(value_of, f"a whole number from {low} to {high}")


def _number(low: float, high: float, *, above_low: bool = False) -> Rule:
    def value_of(value: object, *, text: bool) -> float | None:
        if text and isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,18})?", value):
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if low <= value <= high and not (above_low and value == low) else None

    bounds = f"above {low:.12g} and at most {high:.12g}" if above_low else f"from {low:.12g} to {high:.12g}"
    return Rule(value_of, f"a number {bounds}")


_SQLITE = "sqlite:///"
_POSTGRES = "postgresql://"
# Those of asyncpg that are plain text; it knows sslmode, which is libpq's, under the name ssl.
_POSTGRES_OPTIONS = frozenset({"host", "passfile", "ssl", "target_session_attrs"})


def _is_database(url: str) -> bool:
    if url.startswith(_SQLITE):
        # Memory would forget what was acknowledged; a question mark would begin options, of which there are none.
        path = url.removeprefix(_SQLITE)
        return path not in ("", ":memory:") and not path.endswith("/") and not set(path) & {"?", "\0"}
    try:
        parts = urlsplit(url)
        options = {name for name, _ in parse_qsl(parts.query, keep_blank_values=True)}
        return (
            url.startswith(_POSTGRES)
            and url != _POSTGRES
            and parts.port != 0
            and options <= _POSTGRES_OPTIONS
        )
    except ValueError:
        return False


class HostPort(NamedTuple):
    host: str
    """Without the brackets of an IPv6 address."""
    port: int


def host_port(text: str) -> HostPort | None:
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%a-z]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})", text)
    if match is None or int(match[3]) > 65_535:
        return None
    return HostPort(match[1] or match[2], int(match[3]))


_HOST_PORT = "HOST:PORT, for example 127.0.0.1:7400, 0.0.0.0:7400 or [::1]:7400"

RULES: Mapping[str, Rule] = {
    "db": _text(
        _is_database,
        "sqlite:///FILE or postgresql://USER:PASSWORD@HOST:PORT/DATABASE, the latter with ?ssl=require if need be",
    ),
    "listen": _text(lambda text: host_port(text) is not None, f"{_HOST_PORT}; port 0 takes any free one"),
    "shards": _whole(1, 4_096),
    "reflection": _switch(),
    "log_level": _one_of("debug", "info", "warning", "error"),
    "log_format": _one_of("auto", "console", "json"),
    "commit_interval_ms": _number(0, 1_000),
    "takeover_grace_ms": _whole(0, 600_000),
    "checkpoint_interval_s": _number(0, DAY_S, above_low=True),
    "retention_interval_s": _number(0, 30 * DAY_S, above_low=True),
    "task_retention_s": _number(0, 3_650 * DAY_S),
    "task_attempts_max": _whole(1, 1_000),
    "shutdown_timeout_s": _number(0, 3_600),
}

CLIENT_RULES: Mapping[str, Rule] = {
    "address": _text(lambda text: (place := host_port(text)) is not None and place.port > 0, _HOST_PORT),
    "namespace": _text(bool, "the name of a namespace, not empty"),
}


# -- sources


def load_settings(
    flags: Mapping[str, object], environ: Mapping[str, str], config_file: Path | None = None
) -> Settings:
    """`flags` by setting name; None means not given. Without `config_file`, LIVENESS_CONFIG may name one."""
    _check_variables(environ)
    if config_file is None and CONFIG_VARIABLE in environ:
        config_file = Path(environ[CONFIG_VARIABLE])
    from_file = {} if config_file is None else _read_file(config_file)
    return Settings(
        **_gather(
            RULES,
            (
                ({name: f"key {name} in {config_file}" for name in from_file}, from_file, False),
                _from_environ(RULES, environ),
                _from_flags(flags),
            ),
        )
    )


def load_client_settings(flags: Mapping[str, object], environ: Mapping[str, str]) -> ClientSettings:
    _check_variables(environ)
    return ClientSettings(**_gather(CLIENT_RULES, (_from_environ(CLIENT_RULES, environ), _from_flags(flags))))


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    return PREFIX + name.upper()


def suggestion(name: str, known: Iterable[str]) -> str:
    """A half-sentence to follow "there is no NAME": the known name that was probably meant, or all of them."""
    # Without the prefix, which would make every variable look like every other.
    names = {other.removeprefix(PREFIX): other for other in sorted(known)}
    close = get_close_matches(name.removeprefix(PREFIX), names, n=1)
    return f"did you mean {names[close[0]]}?" if close else f"there are: {', '.join(names.values())}."


def without_password(url: str) -> str:
    """Also of a URL that is not well formed, since it is shown in the message that says so."""
    if url.startswith(_SQLITE):
        return url
    return re.sub(r"(password=)[^&]*", r"\1***", re.sub(r":(?!//).*@", ":***@", url))


# Names of the places, the values, and whether everything is text there.
_Source = tuple[Mapping[str, str], Mapping[str, object], bool]


def _gather(rules: Mapping[str, Rule], sources: Iterable[_Source]) -> dict[str, Any]:
    """Later sources win; what they overrule is checked all the same, as it would be wrong on another day."""
    values: dict[str, Any] = {}
    for places, given, text in sources:
        for name, raw in given.items():
            value = rules[name].value_of(raw, text=text)
            if value is None:
                raise SettingsError(_sentence(places[name], raw, rules[name]))
            values[name] = value
    return values


def _from_flags(flags: Mapping[str, object]) -> _Source:
    given = {name: value for name, value in flags.items() if value is not None}
    return {name: f"flag {flag(name)}" for name in given}, given, True


def _from_environ(rules: Mapping[str, Rule], environ: Mapping[str, str]) -> _Source:
    given = {name: environ[variable(name)] for name in rules if variable(name) in environ}
    return {name: f"variable {variable(name)}" for name in given}, given, True


def _read_file(path: Path) -> dict[str, object]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"the configuration file {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"the configuration file {path} is not UTF-8 text.") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"the configuration file {path} is not valid TOML: {error}.") from error
    for key in values:
        if key not in RULES:
            raise SettingsError(f"key {key} in {path} is not a setting; {suggestion(key, RULES)}")
    return values


# Kubernetes tells each pod about the services around it in variables named after them.
_KUBERNETES = re.compile(r"\w+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_[A-Z]+(_(PROTO|PORT|ADDR))?)")


def _check_variables(environ: Mapping[str, str]) -> None:
    """A misspelt variable would otherwise be obeyed by nobody and noticed by nobody."""
    known = {CONFIG_VARIABLE, *map(variable, RULES), *map(variable, CLIENT_RULES)}
    for name, value in sorted(environ.items()):
        if not name.startswith(PREFIX) or name.startswith(TEST_PREFIX) or name in known:
            continue
        if _KUBERNETES.fullmatch(name) or (name.endswith("_PORT") and "://" in value):
            continue
        raise SettingsError(f"variable {name} is not a setting; {suggestion(name, known)}")


def _sentence(place: str, value: object, rule: Rule) -> str:
    shown = repr(without_password(value)) if isinstance(value, str) else str(value)
    return f"{place} is {shown}, but must be {rule.says}."
