"""How a server is set up, and where a client finds one. Read once at start; nothing else reads the environment.

A value is taken from the first place that has it: flag, LIVENESS_* variable, TOML file, built-in default.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from liveness.config.formats import (
    SECRET_CHARS_MAX,
    SECRET_CHARS_MIN,
    display_webhook_url,
    is_address,
    is_collector_url,
    is_database,
    is_host_name,
    is_name,
    is_queue_pattern,
    is_secret,
    is_webhook_url,
    split_list,
)
from liveness.config.formats import HostPort as HostPort
from liveness.config.formats import host_port as host_port
from liveness.config.setting_types import (
    SQLITE,
    SettingType,
    bool_setting,
    choice_setting,
    display_urls,
    float_setting,
    int_setting,
    is_broker_url,
    list_setting,
    patterns_overlap,
    string_setting,
)
from liveness.config.setting_types import without_password as without_password

PREFIX = "LIVENESS_"
TEST_PREFIX = "LIVENESS_TEST_"
CONFIG_VARIABLE = "LIVENESS_CONFIG"
FRONTEND_ONLY = ("nodes",)
"""Settings that only `liveness.config.frontend_settings` has."""
HTTP_OFF = "off"
DAY_S = 86_400


class SettingsError(Exception):
    """A setting cannot be used. The message is one sentence for the person who set it."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    db: str = "sqlite:///liveness.db"
    listen: str = "127.0.0.1:7400"
    http: str = "127.0.0.1:7480"
    """Where to listen for HTTP: the API as JSON, and the dashboard. `off`: nowhere."""
    http_hosts: tuple[str, ...] = ()
    """More names under which HTTP is reached, for instance through a reverse proxy."""
    advertise: str = ""
    """Where other nodes and frontends reach this one; empty: where it listens."""
    node_lease_ms: int = 4_000
    """A node that is not heard of for so long loses its shards to the others."""
    db_connections: int = 8
    """To PostgreSQL, at most."""
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
    traces: str = ""
    """Where calls that are followed are told of, over OTLP; empty: nowhere."""
    namespaces: tuple[str, ...] = ()
    """Those that this server serves; none named: any."""
    webhook_url: str = ""
    """Where reschedules are sent; empty: nowhere, they are matched here."""
    webhook_secret: str = ""
    """Signs them. Neither a flag, which every process on the machine could read, nor ever shown."""
    webhook_secret_file: str = ""
    """Holds the secret instead."""
    webhook_queues: tuple[str, ...] = ("*/*",)
    """Which reschedules are sent: NAMESPACE/TASK_QUEUE each, * for any."""
    webhook_timeout_s: float = 10.0
    relay: tuple[str, ...] = ()
    """Brokers of one NATS cluster where reschedules are published; none: nowhere."""
    relay_creds_file: str = ""
    """Of NATS, where the URL holds no name and password."""
    relay_queues: tuple[str, ...] = ("*/*",)
    """Which reschedules are published: NAMESPACE/TASK_QUEUE each, * for any."""
    relay_events: bool = False
    """Publish all events, too."""
    relay_stream: str = "LIVENESS"
    relay_replicas: int = 1
    """Of the stream, should it have to be made."""

    def __post_init__(self) -> None:
        for name, setting_type in SETTING_TYPES.items():
            given = getattr(self, name)
            value = setting_type.parse(given, text=False)
            if value is None:
                raise SettingsError(_invalid_value_message(f"setting {name}", given, setting_type))
            force_setattr(self, name, value)
        if self.webhook_url:
            self._check_webhook()
        if self.relay:
            self._check_relay()
        elif self.relay_events:
            raise SettingsError("relay_events is set, but there is no broker to relay to; set relay.")

    def _check_webhook(self) -> None:
        if not self.webhook_secret:
            raise SettingsError(
                "webhook_url is set, but there is no secret to sign with; set webhook_secret or webhook_secret_file."
            )
        self._check_namespaces_served("webhook_queues", self.webhook_queues)

    def _check_relay(self) -> None:
        self._check_namespaces_served("relay_queues", self.relay_queues)
        if self.webhook_url:
            for queue in self.relay_queues:
                for other in self.webhook_queues:
                    if patterns_overlap(queue, other):
                        raise SettingsError(
                            f"relay_queues has {queue} and webhook_queues has {other}, but a reschedule goes to one "
                            "place; name task queues that have nothing in common."
                        )

    def _check_namespaces_served(self, name: str, queues: tuple[str, ...]) -> None:
        for queue in queues:
            namespace = queue.partition("/")[0]
            if self.namespaces and namespace not in ("*", *self.namespaces):
                raise SettingsError(
                    f"{name} has {queue}, but {namespace} is not among the namespaces that are served: "
                    f"{', '.join(self.namespaces)}."
                )

    def __repr__(self) -> str:
        """Without secrets."""
        return f"Settings({', '.join(f'{name}={display}' for name, display in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [
            (name, setting_type.display(getattr(self, name))) for name, setting_type in SETTING_TYPES.items()
        ]

    @property
    def sqlite_path(self) -> Path | None:
        """None on PostgreSQL."""
        return Path(self.db.removeprefix(SQLITE)) if self.db.startswith(SQLITE) else None

    @property
    def db_without_password(self) -> str:
        """Without the password."""
        return without_password(self.db)


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    address: str = "127.0.0.1:7400"
    """Or several, with commas between them."""
    namespace: str = "default"

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of nodes that serve the same; each once."""
        return tuple(dict.fromkeys(split_list(self.address)))


# -- rules


_QUEUE_PATTERNS = "NAMESPACE/TASK_QUEUE, or several with commas between them, where * alone stands for any namespace or any task queue"
_HOST_PORT = "HOST:PORT, for example 127.0.0.1:7400, 0.0.0.0:7400 or [::1]:7400"

SETTING_TYPES: Mapping[str, SettingType] = {
    "db": string_setting(
        is_database,
        "sqlite:///FILE or postgresql://USER:PASSWORD@HOST:PORT/DATABASE, the latter with ?ssl=require if need be; "
        "several hosts: postgresql://USER:PASSWORD@/DATABASE?host=HOST:PORT&host=HOST:PORT",
    ),
    "listen": string_setting(
        lambda text: host_port(text) is not None, f"{_HOST_PORT}; port 0 takes any free one"
    ),
    "http": string_setting(
        lambda text: text == HTTP_OFF or host_port(text) is not None,
        "HOST:PORT, for example 127.0.0.1:7480 or 0.0.0.0:7480, where port 0 takes any free one, or off",
    ),
    "http_hosts": list_setting(
        is_host_name, "names of hosts with commas between them, without ports", may_be_empty=True
    ),
    "advertise": string_setting(
        lambda text: text == "" or is_address(text),
        "HOST:PORT under which other nodes reach this one, for example 10.0.0.7:7400",
    ),
    "node_lease_ms": int_setting(500, 600_000),
    "db_connections": int_setting(2, 1_000),
    "shards": int_setting(1, 4_096),
    "reflection": bool_setting(),
    "log_level": choice_setting("debug", "info", "warning", "error"),
    "log_format": choice_setting("auto", "console", "json"),
    "commit_interval_ms": float_setting(0, 1_000),
    "takeover_grace_ms": int_setting(0, 600_000),
    "checkpoint_interval_s": float_setting(0, DAY_S, above_low=True),
    "retention_interval_s": float_setting(0, 30 * DAY_S, above_low=True),
    "task_retention_s": float_setting(0, 3_650 * DAY_S),
    "task_attempts_max": int_setting(1, 1_000),
    "shutdown_timeout_s": float_setting(0, 3_600),
    "traces": string_setting(
        is_collector_url, "http://HOST:PORT or https://HOST:PORT of a collector that takes OTLP over gRPC"
    ),
    "namespaces": list_setting(is_name, "names of namespaces with commas between them", may_be_empty=True),
    "webhook_url": string_setting(
        is_webhook_url,
        "http://HOST:PORT/PATH or https://HOST/PATH, without a user name and without #",
        display_webhook_url,
    ),
    "webhook_secret": string_setting(
        is_secret,
        f"a text of {SECRET_CHARS_MIN} to {SECRET_CHARS_MAX} printable characters with no space around it",
        lambda secret: "'***'" if secret else "''",
    ),
    "webhook_secret_file": string_setting(lambda text: "\0" not in text, "the name of a file"),
    "webhook_queues": list_setting(is_queue_pattern, _QUEUE_PATTERNS),
    # With the wait for a free connection it stays below what the queue gives a sink altogether.
    "webhook_timeout_s": float_setting(0, 20, above_low=True),
    "relay": list_setting(
        is_broker_url,
        "nats://HOST:PORT or tls://HOST:PORT, or several of one cluster with commas between them, each with "
        "USER:PASSWORD@ if need be",
        may_be_empty=True,
        display=display_urls,
    ),
    "relay_creds_file": string_setting(lambda text: "\0" not in text, "the name of a file"),
    "relay_queues": list_setting(is_queue_pattern, _QUEUE_PATTERNS),
    "relay_events": bool_setting(),
    "relay_stream": string_setting(
        lambda text: re.fullmatch(r"[A-Za-z0-9_-]{1,200}", text) is not None,
        "a name of up to 200 letters, digits, - and _",
    ),
    "relay_replicas": int_setting(1, 5),
}


CLIENT_SETTING_TYPES: Mapping[str, SettingType] = {
    "address": string_setting(
        lambda text: all(map(is_address, split_list(text))),
        f"{_HOST_PORT}, or several with commas between them",
    ),
    "namespace": string_setting(bool, "the name of a namespace, not empty"),
}


# -- sources


def load_settings(
    flags: Mapping[str, object], environ: Mapping[str, str], config_file: Path | None = None
) -> Settings:
    """`flags` by setting name; None means not given. Without `config_file`, LIVENESS_CONFIG may name one."""
    values = load_values(SETTING_TYPES, flags, environ, config_file)
    if secret_file := values.get("webhook_secret_file"):
        if values.get("webhook_secret"):
            raise SettingsError("webhook_secret and webhook_secret_file are both set; keep one of them.")
        values["webhook_secret"] = _read_secret(Path(secret_file))
    return Settings(**values)


def load_values(
    setting_types: Mapping[str, SettingType],
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    config_file: Path | None,
) -> dict[str, Any]:
    """Checked one by one; later sources win."""
    _check_variables(environ)
    if config_file is None and CONFIG_VARIABLE in environ:
        config_file = Path(environ[CONFIG_VARIABLE])
    from_file = {} if config_file is None else _read_file(config_file, setting_types)
    return _merge_sources(
        setting_types,
        (
            ({name: f"key {name} in {config_file}" for name in from_file}, from_file, False),
            _from_environ(setting_types, environ),
            _from_flags(flags),
        ),
    )


def load_client_settings(flags: Mapping[str, object], environ: Mapping[str, str]) -> ClientSettings:
    _check_variables(environ)
    return ClientSettings(
        **_merge_sources(
            CLIENT_SETTING_TYPES, (_from_environ(CLIENT_SETTING_TYPES, environ), _from_flags(flags))
        )
    )


def flag_name(name: str) -> str:
    return "--" + name.replace("_", "-")


def variable_name(name: str) -> str:
    return PREFIX + name.upper()


def suggestion(name: str, known: Iterable[str]) -> str:
    """A half-sentence to follow "there is no NAME": the known name that was probably meant, or all of them."""
    # Without the prefix, which would make every variable look like every other.
    names = {other.removeprefix(PREFIX): other for other in sorted(known)}
    close = get_close_matches(name.removeprefix(PREFIX), names, n=1)
    return f"did you mean {names[close[0]]}?" if close else f"there are: {', '.join(names.values())}."


# Names of the places, the values, and whether everything is text there.
_Source = tuple[Mapping[str, str], Mapping[str, object], bool]


def _merge_sources(setting_types: Mapping[str, SettingType], sources: Iterable[_Source]) -> dict[str, Any]:
    """Later sources win; what they overrule is checked all the same, as it would be wrong on another day."""
    values: dict[str, Any] = {}
    for labels, given, text in sources:
        for name, raw in given.items():
            value = setting_types[name].parse(raw, text=text)
            if value is None:
                raise SettingsError(_invalid_value_message(labels[name], raw, setting_types[name]))
            values[name] = value
    return values


def _from_flags(flags: Mapping[str, object]) -> _Source:
    given = {name: value for name, value in flags.items() if value is not None}
    return {name: f"flag {flag_name(name)}" for name in given}, given, True


def _from_environ(setting_types: Mapping[str, SettingType], environ: Mapping[str, str]) -> _Source:
    given = {name: environ[variable_name(name)] for name in setting_types if variable_name(name) in environ}
    return {name: f"variable {variable_name(name)}" for name in given}, given, True


def _read_file(path: Path, setting_types: Mapping[str, SettingType]) -> dict[str, object]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"the configuration file {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"the configuration file {path} is not UTF-8 text.") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"the configuration file {path} is not valid TOML: {error}.") from error
    for key in values:
        if key not in setting_types:
            raise SettingsError(f"key {key} in {path} is not a setting; {suggestion(key, setting_types)}")
    return values


def _read_secret(path: Path) -> str:
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SettingsError(
            f"the file of the webhook secret, {path}, cannot be read: {error.strerror}."
        ) from error
    except UnicodeDecodeError:
        # Without the cause, which carries what was read.
        raise SettingsError(f"the file of the webhook secret, {path}, is not UTF-8 text.") from None
    if not secret or not is_secret(secret):
        raise SettingsError(
            f"the file of the webhook secret, {path}, must hold {SETTING_TYPES['webhook_secret'].expected}."
        )
    return secret


# Kubernetes tells each pod about the services around it in variables named after them.
_KUBERNETES = re.compile(r"\w+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_[A-Z]+(_(PROTO|PORT|ADDR))?)")


def _check_variables(environ: Mapping[str, str]) -> None:
    """A misspelt variable would otherwise be obeyed by nobody and noticed by nobody."""
    known = {CONFIG_VARIABLE, *map(variable_name, (*SETTING_TYPES, *CLIENT_SETTING_TYPES, *FRONTEND_ONLY))}
    for name, value in sorted(environ.items()):
        if not name.startswith(PREFIX) or name.startswith(TEST_PREFIX) or name in known:
            continue
        if _KUBERNETES.fullmatch(name) or (name.endswith("_PORT") and "://" in value):
            continue
        raise SettingsError(f"variable {name} is not a setting; {suggestion(name, known)}")


def _invalid_value_message(label: str, value: object, setting_type: SettingType) -> str:
    return f"{label} is {setting_type.display(value)}, but must be {setting_type.expected}."
