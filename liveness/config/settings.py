"""The settings of a server and of a client. They are read once at start; no other module reads the environment.

The first source that has a value wins: flag, LIVENESS_* variable, TOML file, built-in default.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec.structs import force_setattr

from liveness.config import bridge_settings, cluster_settings, doors
from liveness.config.database_password import add_password_from_file
from liveness.config.formats import (
    SECRET_CHARS_MAX,
    SECRET_CHARS_MIN,
    SQLITE,
    display_broker_urls,
    display_webhook_url,
    is_address,
    is_broker_url,
    is_collector_url,
    is_database,
    is_grant_rule,
    is_host_name,
    is_key_source,
    is_name,
    is_queue_pattern,
    is_secret,
    is_webhook_url,
    patterns_overlap,
    split_list,
)
from liveness.config.formats import HostPort as HostPort
from liveness.config.formats import host_port as host_port
from liveness.config.formats import without_password as without_password
from liveness.config.setting_types import SettingsError as SettingsError
from liveness.config.setting_types import (
    SettingType,
    bool_setting,
    choice_setting,
    float_setting,
    int_setting,
    list_setting,
    string_setting,
)

PREFIX = "LIVENESS_"
TEST_PREFIX = "LIVENESS_TEST_"
CONFIG_VARIABLE = "LIVENESS_CONFIG"
PGAI_DSN_VARIABLE = "LIVENESS_PGAI_DSN"
"""The database for `liveness pgai`, so that its password is in no process list."""
FRONTEND_ONLY = ("nodes",)
"""Names of settings that only a frontend has; see `liveness.config.frontend_settings`."""
HTTP_OFF = "off"
LISTENER_AUTO, LISTENER_EDGE, LISTENER_PYTHON = "auto", "edge", "python"
TLS_CLIENT_AUTH_REQUIRED = "required"
DAY_S = 86_400


class TlsSettings(Protocol):
    """The settings of TLS, which a server and a frontend have."""

    @property
    def tls_cert_file(self) -> str: ...
    @property
    def tls_key_file(self) -> str: ...
    @property
    def tls_client_ca_file(self) -> str: ...
    @property
    def tls_client_auth(self) -> str: ...


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    db: str = "sqlite:///liveness.db"
    listen: str = "127.0.0.1:7400"
    listener: str = LISTENER_AUTO
    """What takes gRPC calls in there: edge is the native one, python is gRPC's own; auto: the native edge if it is installed."""
    http: str = "127.0.0.1:7480"
    """The address of the HTTP API and the dashboard, or `off`."""
    http_hosts: tuple[str, ...] = ()
    """Further host names under which clients reach HTTP, for instance through a reverse proxy."""
    tls_cert_file: str = ""
    """The certificate of the public listeners, gRPC and HTTP, and those of intermediate authorities; empty: no TLS."""
    tls_key_file: str = ""
    tls_client_ca_file: str = ""
    """The authorities that sign certificates of clients; empty: clients are not asked for certificates."""
    tls_client_auth: str = "optional"
    """Whether a client must have a certificate: optional or required."""
    cluster_listen: str = ""
    """The address at which other nodes and frontends call this node, apart from clients. Empty: on PostgreSQL the host of
    `listen` and its port + 1000; on SQLite none, because no other node can share the database."""
    advertise: str = ""
    """The address at which other nodes and frontends reach this node; empty: that of the cluster listener."""
    cluster_cert_file: str = ""
    """The certificate that this node shows other nodes and frontends; see `liveness.security.cluster_tls`."""
    cluster_key_file: str = ""
    cluster_ca_file: str = ""
    """The authorities whose certificates other nodes and frontends must show."""
    insecure: bool = False
    """Allow listeners beyond loopback without TLS and authentication."""
    node_lease_ms: int = 4_000
    """A node that has not renewed its own lease for this long loses its shards to other nodes."""
    db_password_file: str = ""
    """A file with the password for PostgreSQL, instead of one in `db`. A flag with a password is visible in the process list."""
    db_connections: int = 8
    """The largest number of connections to PostgreSQL."""
    shards: int = 64
    """Fixed when the database is created."""
    reflection: bool = True
    """Offer gRPC reflection."""
    log_level: str = "info"
    log_format: str = "auto"
    """auto: console on a terminal, else json."""
    commit_interval_ms: float = 20.0
    """How long a heartbeat may wait to be committed together with others."""
    takeover_grace_ms: int = 10_000
    """Observed time after a start in which no lease ends, so that clients can reconnect."""
    checkpoint_interval_s: float = 60.0
    """How often each shard writes a checkpoint, from which a restart recovers."""
    retention_interval_s: float = 3_600.0
    """How often what is older than its retention is deleted."""
    database_bytes_max: int = 0
    """If the database holds more, the oldest samples of metrics and events are deleted before their time; 0 for no limit."""
    task_retention_s: float = 7.0 * DAY_S
    """How long finished tasks are kept."""
    task_attempts_max: int = 20
    """A task that failed this often is dead-lettered."""
    shutdown_timeout_s: float = 10.0
    """How long a server that stops lets running calls finish."""
    traces: str = ""
    """The OTLP collector that gets the traces; empty: none."""
    register_self: str = "on"
    """on: `liveness serve` registers its process, and the relay and the bridge in it, in the namespace `liveness`."""
    auth: str = "off"
    """on: every call needs a token, a JWT or a client certificate. off: everybody may do everything."""
    auth_jwt_issuer: str = ""
    """The issuer of JWTs that are accepted as credentials; empty: none are."""
    auth_jwt_audience: str = ""
    """The audience that a JWT must be meant for."""
    auth_jwt_keys: str = ""
    """The issuer's public keys as a JSON Web Key Set: a file, or an https URL."""
    auth_jwt_grants: tuple[str, ...] = ()
    """Rules that map claims of a JWT, or the name in a client certificate, to grants: CLAIM=PATTERN=>GRANT each."""
    audit_retention_s: float = 365.0 * DAY_S
    """How long changes by operators and denied access are kept in the audit; 0: for ever."""
    component_metrics_retention_s: float = 7.0 * DAY_S
    """How long samples of metrics are kept that components report; 0: for ever."""
    component_metrics_otlp: str = ""
    """The OTLP collector to which these samples are forwarded as metrics; empty: none."""
    principal_calls_per_s: float = 5_000.0
    """Calls per second of one principal at this server; a batch of heartbeats is one. 0: no limit."""
    principal_calls_burst: int = 10_000
    """The number of calls of a principal that may come at once."""
    principal_bytes_per_s: float = 64.0 * 1024 * 1024
    """Bytes per second in the requests of one principal at this server. 0: no limit."""
    principal_streams_max: int = 2_000
    """Streams that one principal may have open at this server. 0: no limit."""
    principal_connections_max: int = 10_000
    """Connections on which one principal may call this server within a minute. 0: no limit."""
    namespaces: tuple[str, ...] = ()
    """The namespaces that this server serves; empty: any."""
    webhook_url: str = ""
    """The URL to which reschedules are sent; empty: the server matches them itself."""
    webhook_secret: str = ""
    """Signs the reschedules. It is never displayed, and has no flag, which every process on the machine could read."""
    webhook_secret_file: str = ""
    """A file with the secret, instead of `webhook_secret`."""
    webhook_queues: tuple[str, ...] = ("*/*",)
    """The task queues whose reschedules are sent: NAMESPACE/TASK_QUEUE each, * for any."""
    webhook_timeout_s: float = 10.0
    """How long the receiver of a reschedule may take to answer."""
    bridge_temporal: tuple[str, ...] = ()
    """Temporal's frontend, if this server also runs a bridge for Temporal workers."""
    bridge_listen: str = "127.0.0.1:7233"
    """Where Temporal workers connect to that bridge."""
    bridge_upstream_tls: bool = False
    """Connect to Temporal with TLS, also without any of the following files."""
    bridge_upstream_ca_file: str = ""
    bridge_upstream_cert_file: str = ""
    """The certificate that the bridge shows Temporal."""
    bridge_upstream_key_file: str = ""
    bridge_upstream_server_name: str = ""
    bridge_upstream_api_key_file: str = ""
    """A file with an API key for calls that bring no credential of their own."""
    bridge_tls_cert_file: str = ""
    """The certificate that the bridge shows workers; empty: no TLS."""
    bridge_tls_key_file: str = ""
    bridge_tls_worker_ca_file: str = ""
    bridge_lease: str = ""
    """How long a Temporal worker may be silent; empty: three of its heartbeat intervals."""
    bridge_restart_allowance: str = "30s"
    """How long no bridge may run before silence counts."""
    bridge_hints: str = "2s"
    """How long a Temporal worker may take to call again after its connection broke, or off."""
    bridge_skip: tuple[str, ...] = ()
    """Task queues, and activity types as `type:NAME`, that are left alone."""
    bridge_only: tuple[str, ...] = ()
    """If not empty, all others are left alone."""
    bridge_temporal_ui: str = ""
    """The address of Temporal's web page, for links."""
    door: tuple[str, ...] = ()
    """The doors for clients of other systems; see `liveness.config.doors`."""
    door_pgai_hints: str = "2s"
    """How long a pgai worker counts as alive after its heartbeat session ended, or off."""
    door_pgai_restart_allowance: str = "1h"
    """For how long after a restart of their database the silence of pgai workers means nothing."""
    door_noetl_replicas: str = "show"
    """What happens to a second process that registers a name of NoETL's: it is shown, refused, or gets a number."""
    relay: tuple[str, ...] = ()
    """The brokers of a NATS cluster to which reschedules are published; empty: none."""
    relay_creds_file: str = ""
    """A credentials file of NATS, if the URL has no user name and password."""
    relay_queues: tuple[str, ...] = ("*/*",)
    """The task queues whose reschedules are published: NAMESPACE/TASK_QUEUE each, * for any."""
    relay_events: bool = False
    """Also publish all events."""
    relay_stream: str = "LIVENESS"
    relay_replicas: int = 1
    """Replicas of the stream, if the server has to create it."""

    def __post_init__(self) -> None:
        for name, setting_type in SETTING_TYPES.items():
            given = getattr(self, name)
            value = setting_type.parse(given, text=False)
            if value is None:
                raise _invalid_value(f"setting {name}", given, setting_type)
            force_setattr(self, name, value)
        check_tls_settings(self)
        cluster_settings.check(self)
        bridge_settings.check(self, {field.name: field.default for field in msgspec.structs.fields(self)})
        doors.check(self)
        self._check_auth()
        if self.webhook_url:
            self._check_webhook()
        if self.relay:
            self._check_relay()
        elif self.relay_events:
            raise SettingsError("relay_events is set, but there is no broker to relay to; set relay.")

    def _check_auth(self) -> None:
        jwt = {
            name: getattr(self, name) for name in ("auth_jwt_issuer", "auth_jwt_audience", "auth_jwt_keys")
        }
        given = [name for name, value in jwt.items() if value]
        missing = [name for name, value in jwt.items() if not value]
        if given and missing:
            raise SettingsError(
                f"{given[0]} is set, but JWTs need {' and '.join(missing)} as well; set all three."
            )
        if self.auth == "off" and (given or self.auth_jwt_grants):
            raise SettingsError(
                f"{(given or ['auth_jwt_grants'])[0]} is set, but nobody is asked; set auth to on."
            )

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
                            "receiver; name task queues that have nothing in common."
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
        return f"Settings({', '.join(f'{name}={display}' for name, display in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [
            (name, setting_type.display(getattr(self, name))) for name, setting_type in SETTING_TYPES.items()
        ]

    @property
    def sqlite_path(self) -> Path | None:
        """None if the database is PostgreSQL."""
        return Path(self.db.removeprefix(SQLITE)) if self.db.startswith(SQLITE) else None

    @property
    def cluster_listen_address(self) -> str:
        """Where the cluster listener binds; empty: there is none."""
        return cluster_settings.listen_address(self)

    @property
    def db_without_password(self) -> str:
        return without_password(self.db)


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    address: str = "127.0.0.1:7400"
    """One address, or several with commas between them."""
    namespace: str = "default"
    tls: bool | None = None
    """Whether to connect with TLS; None: if any other setting of TLS is set."""
    tls_ca_file: str = ""
    """The authorities that sign the certificates of servers; empty: those that this system trusts."""
    tls_client_cert_file: str = ""
    tls_client_key_file: str = ""
    tls_server_name: str = ""
    """The name in the server's certificate, if it is not the one in the address."""
    token_file: str = ""
    """The file with the token that says who calls."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """The distinct addresses, of nodes of the same cluster."""
        return tuple(dict.fromkeys(split_list(self.address)))

    @property
    def uses_tls(self) -> bool:
        files = (self.tls_ca_file, self.tls_client_cert_file, self.tls_client_key_file, self.tls_server_name)
        return any(files) if self.tls is None else self.tls


def check_tls_settings(settings: TlsSettings) -> None:
    if bool(settings.tls_cert_file) != bool(settings.tls_key_file):
        given, missing = (
            ("tls_cert_file", "tls_key_file") if settings.tls_cert_file else ("tls_key_file", "tls_cert_file")
        )
        raise SettingsError(f"{given} is set without {missing}; TLS needs both.")
    if settings.tls_client_ca_file and not settings.tls_cert_file:
        raise SettingsError("tls_client_ca_file is set without tls_cert_file; TLS needs both.")
    if settings.tls_client_auth == TLS_CLIENT_AUTH_REQUIRED and not settings.tls_client_ca_file:
        raise SettingsError(
            "tls_client_auth is required, but nothing says which certificates are good; set tls_client_ca_file."
        )


# -- the type of each setting


_QUEUE_PATTERNS = "NAMESPACE/TASK_QUEUE, or several with commas between them, where * alone stands for any namespace or any task queue"
_HOST_PORT = "HOST:PORT, for example 127.0.0.1:7400, 0.0.0.0:7400 or [::1]:7400"
COLLECTOR = "http://HOST:PORT or https://HOST:PORT of a collector that takes OTLP over gRPC"
_FILE_NAME = string_setting(lambda text: "\0" not in text, "the name of a file")

SETTING_TYPES: Mapping[str, SettingType] = {
    "db": string_setting(
        is_database,
        "sqlite:///FILE or postgresql://USER:PASSWORD@HOST:PORT/DATABASE, the latter with ?ssl=require if need be; "
        "several hosts: postgresql://USER:PASSWORD@/DATABASE?host=HOST:PORT&host=HOST:PORT",
    ),
    "listen": string_setting(
        lambda text: host_port(text) is not None, f"{_HOST_PORT}; port 0 takes any free one"
    ),
    "listener": choice_setting(LISTENER_AUTO, LISTENER_EDGE, LISTENER_PYTHON),
    "http": string_setting(
        lambda text: text == HTTP_OFF or host_port(text) is not None,
        "HOST:PORT, for example 127.0.0.1:7480 or 0.0.0.0:7480, where port 0 takes any free one, or off",
    ),
    "http_hosts": list_setting(
        is_host_name, "names of hosts with commas between them, without ports", may_be_empty=True
    ),
    "advertise": string_setting(
        lambda text: text == "" or is_address(text),
        "HOST:PORT under which other nodes reach this one, for example 10.0.0.7:8400",
    ),
    "tls_cert_file": _FILE_NAME,
    "tls_key_file": _FILE_NAME,
    "tls_client_ca_file": _FILE_NAME,
    "tls_client_auth": choice_setting("optional", TLS_CLIENT_AUTH_REQUIRED),
    "cluster_listen": string_setting(
        lambda text: text == "" or host_port(text) is not None,
        "HOST:PORT, for example 10.0.0.7:8400; port 0 takes any free one",
    ),
    **cluster_settings.TLS_SETTING_TYPES,
    "insecure": bool_setting(),
    "node_lease_ms": int_setting(500, 600_000),
    "db_password_file": _FILE_NAME,
    "db_connections": int_setting(2, 1_000),
    "shards": int_setting(1, 4_096),
    "reflection": bool_setting(),
    "log_level": choice_setting("debug", "info", "warning", "error"),
    "log_format": choice_setting("auto", "console", "json"),
    "commit_interval_ms": float_setting(0, 1_000),
    "takeover_grace_ms": int_setting(0, 600_000),
    "checkpoint_interval_s": float_setting(0, DAY_S, above_low=True),
    "retention_interval_s": float_setting(0, 30 * DAY_S, above_low=True),
    "database_bytes_max": int_setting(0, 2**53),
    "task_retention_s": float_setting(0, 3_650 * DAY_S),
    "task_attempts_max": int_setting(1, 1_000),
    "shutdown_timeout_s": float_setting(0, 3_600),
    "traces": string_setting(is_collector_url, COLLECTOR),
    "register_self": choice_setting("on", "off"),
    "auth": choice_setting("on", "off"),
    "auth_jwt_issuer": string_setting(lambda text: text.isprintable(), "the iss claim of JWTs"),
    "auth_jwt_audience": string_setting(lambda text: text.isprintable(), "the aud claim of JWTs"),
    "auth_jwt_keys": string_setting(
        is_key_source,
        "the name of a file, or https://HOST/PATH of a JSON Web Key Set (http on 127.0.0.1 only)",
    ),
    "auth_jwt_grants": list_setting(
        is_grant_rule,
        "CLAIM=PATTERN=>ROLE:NAMESPACE or CLAIM=PATTERN=>ROLE:NAMESPACE:KEY_PREFIX, or several with commas between them",
        may_be_empty=True,
    ),
    "audit_retention_s": float_setting(0, 36_500 * DAY_S),
    "component_metrics_retention_s": float_setting(0, 3_650 * DAY_S),
    "component_metrics_otlp": string_setting(is_collector_url, COLLECTOR),
    "principal_calls_per_s": float_setting(0, 1e9),
    "principal_calls_burst": int_setting(1, 10**9),
    "principal_bytes_per_s": float_setting(0, 1e15),
    "principal_streams_max": int_setting(0, 10**9),
    "principal_connections_max": int_setting(0, 10**9),
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
    "webhook_secret_file": _FILE_NAME,
    "webhook_queues": list_setting(is_queue_pattern, _QUEUE_PATTERNS),
    # Together with the wait for a free connection, it stays below the time that the queue allows a sink.
    "webhook_timeout_s": float_setting(0, 20, above_low=True),
    **bridge_settings.SERVER_SETTING_TYPES,
    **doors.SETTING_TYPES,
    "relay": list_setting(
        is_broker_url,
        "nats://HOST:PORT or tls://HOST:PORT, or several of one cluster with commas between them, each with "
        "USER:PASSWORD@ if need be",
        may_be_empty=True,
        display=display_broker_urls,
    ),
    "relay_creds_file": _FILE_NAME,
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
    "tls": bool_setting(),
    "tls_ca_file": _FILE_NAME,
    "tls_client_cert_file": _FILE_NAME,
    "tls_client_key_file": _FILE_NAME,
    "tls_server_name": string_setting(
        lambda text: text == "" or is_host_name(text), "the name of a host, without a port"
    ),
    "token_file": _FILE_NAME,
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
    if problem := add_password_from_file(values):
        raise SettingsError(problem)
    return Settings(**values)


def load_values(
    setting_types: Mapping[str, SettingType],
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    config_file: Path | None,
) -> dict[str, Any]:
    """The values of all sources except the defaults, each of them checked."""
    _check_variables(environ)
    if config_file is None and CONFIG_VARIABLE in environ:
        config_file = Path(environ[CONFIG_VARIABLE])
    from_file = {} if config_file is None else _read_file(config_file, setting_types)
    values = _parse(setting_types, from_file, lambda name: f"key {name} in {config_file}", text=False)
    return values | _parse_variables(setting_types, environ) | _parse_flags(setting_types, flags)


def load_client_settings(flags: Mapping[str, object], environ: Mapping[str, str]) -> ClientSettings:
    _check_variables(environ)
    values = _parse_variables(CLIENT_SETTING_TYPES, environ) | _parse_flags(CLIENT_SETTING_TYPES, flags)
    return ClientSettings(**values)


def load_pgai_dsn(dsn: str | None, environ: Mapping[str, str]) -> str:
    """The database for `liveness pgai`. Raises `SettingsError` without the value, which may contain a password."""
    _check_variables(environ)
    found = dsn or environ.get(PGAI_DSN_VARIABLE, "")
    if not found:
        raise SettingsError(f"no database is given; set --dsn or {PGAI_DSN_VARIABLE} to {doors.DSN_RULE}.")
    if not doors.is_dsn(found):
        raise SettingsError(f"the database must be {doors.DSN_RULE}.")
    return found


def flag_name(name: str) -> str:
    return "--" + name.replace("_", "-")


def variable_name(name: str) -> str:
    return PREFIX + name.upper()


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the known name that was probably meant, or all of them."""
    # The names are compared without their prefix, which would make all variables similar.
    names = {other.removeprefix(PREFIX): other for other in sorted(known)}
    close = get_close_matches(name.removeprefix(PREFIX), names, n=1)
    return f"did you mean {names[close[0]]}?" if close else f"there are: {', '.join(names.values())}."


def _parse_flags(setting_types: Mapping[str, SettingType], flags: Mapping[str, object]) -> dict[str, Any]:
    given = {name: value for name, value in flags.items() if value is not None}
    return _parse(setting_types, given, lambda name: f"flag {flag_name(name)}", text=True)


def _parse_variables(setting_types: Mapping[str, SettingType], environ: Mapping[str, str]) -> dict[str, Any]:
    given = {name: environ[variable_name(name)] for name in setting_types if variable_name(name) in environ}
    return _parse(setting_types, given, lambda name: f"variable {variable_name(name)}", text=True)


def _parse(
    setting_types: Mapping[str, SettingType],
    given: Mapping[str, object],
    label: Callable[[str], str],
    *,
    text: bool,
) -> dict[str, Any]:
    """Parse all values of one source, also those that another source overrides: they would fail without it."""
    values = {name: setting_types[name].parse(raw, text=text) for name, raw in given.items()}
    for name, value in values.items():
        if value is None:
            raise _invalid_value(label(name), given[name], setting_types[name])
    return values


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
        raise SettingsError(f"the webhook secret file {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError:
        # Without the cause, which contains the bytes that were read.
        raise SettingsError(f"the webhook secret file {path} is not UTF-8 text.") from None
    if not secret or not is_secret(secret):
        raise SettingsError(
            f"the webhook secret file {path} must hold {SETTING_TYPES['webhook_secret'].expected}."
        )
    return secret


# Kubernetes sets variables in each pod that are named after the services of its namespace.
_KUBERNETES = re.compile(r"\w+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_[A-Z]+(_(PROTO|PORT|ADDR))?)")


SUPERVISOR_VARIABLES = frozenset(
    PREFIX + name
    for name in (
        "COMPONENT_ID", "COMPONENT_PROCESS", "SESSION_ID", "SUPERVISOR_ID", "CHECK_ID", "HEALTH_FD", "CONTROL_FD", "GROUP", "INDEX",
        "TASK_QUEUE", "LABELS", "BUILD_ID", "LEASE",
    )
)  # fmt: skip
"""What `liveness supervise` tells the processes that it starts. A server may be one of them."""


def _check_variables(environ: Mapping[str, str]) -> None:
    """Refuse unknown variables: a misspelt one would be ignored without notice."""
    known = {
        CONFIG_VARIABLE,
        PGAI_DSN_VARIABLE,
        *map(variable_name, (*SETTING_TYPES, *CLIENT_SETTING_TYPES, *FRONTEND_ONLY)),
    }
    for name, value in sorted(environ.items()):
        if not name.startswith(PREFIX) or name.startswith(TEST_PREFIX) or name in known:
            continue
        if name in SUPERVISOR_VARIABLES:
            continue
        if _KUBERNETES.fullmatch(name) or (name.endswith("_PORT") and "://" in value):
            continue
        raise SettingsError(f"variable {name} is not a setting; {suggestion(name, known)}")


def _invalid_value(label: str, value: object, setting_type: SettingType) -> SettingsError:
    return SettingsError(f"{label} is {setting_type.display(value)}, but must be {setting_type.expected}.")
