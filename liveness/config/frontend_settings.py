"""The settings of a frontend. They have the same sources as those of a server; settings of the same name mean the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from liveness.config import cluster_settings
from liveness.config.database_password import add_password_from_file
from liveness.config.formats import SQLITE, is_address, without_password
from liveness.config.setting_types import SettingType, list_setting
from liveness.config.settings import (
    HTTP_OFF,
    LISTENER_AUTO,
    SETTING_TYPES,
    SettingsError,
    check_tls_settings,
    load_values,
)


class FrontendSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    db: str = ""
    """The database in which the nodes register; empty: use `nodes`."""
    db_password_file: str = ""
    """A file with its password, instead of one in `db`."""
    nodes: tuple[str, ...] = ()
    """Cluster addresses of some nodes, HOST:PORT each; they know the others."""
    cluster_cert_file: str = ""
    """The certificate that this frontend shows nodes."""
    cluster_key_file: str = ""
    cluster_ca_file: str = ""
    """The authorities whose certificates nodes must show."""
    insecure: bool = False
    """Allow listeners beyond loopback without TLS and authentication; also calls to nodes beyond loopback without TLS."""
    listen: str = "127.0.0.1:7401"
    listener: str = LISTENER_AUTO
    """What takes gRPC calls in there: edge, python, or auto."""
    http: str = HTTP_OFF
    """Where to serve HTTP: health, metrics, the API, the dashboard. Off, because a node on the same machine may use the
    usual port."""
    http_hosts: tuple[str, ...] = ()
    """Further host names under which clients reach HTTP."""
    tls_cert_file: str = ""
    """The certificate of the public listeners, gRPC and HTTP, and those of intermediate authorities; empty: no TLS."""
    tls_key_file: str = ""
    tls_client_ca_file: str = ""
    """The authorities that sign certificates of clients; empty: clients are not asked for certificates."""
    tls_client_auth: str = "optional"
    """Whether a client must have a certificate: optional or required."""
    reflection: bool = True
    log_level: str = "info"
    log_format: str = "auto"
    shutdown_timeout_s: float = 10.0
    register_self: str = "on"
    """on: `liveness frontend` registers its process in the namespace `liveness`."""
    auth: str = "off"
    """on: every call needs a credential, about which the frontend asks a node."""
    principal_calls_per_s: float = 5_000.0
    principal_calls_burst: int = 10_000
    principal_bytes_per_s: float = 64.0 * 1024 * 1024
    principal_streams_max: int = 2_000
    principal_connections_max: int = 10_000
    traces: str = ""
    """The OTLP collector that gets the traces; empty: none."""

    def __post_init__(self) -> None:
        check_tls_settings(self)
        if not self.db and not self.nodes:
            raise SettingsError("a frontend must know where its nodes are; set --nodes or --db.")
        if self.db and self.nodes:
            raise SettingsError("db and nodes are both set; keep one of them.")
        if self.db.startswith(SQLITE):
            raise SettingsError(
                "a frontend finds nodes in a PostgreSQL database only; name the node of this one with --nodes."
            )
        cluster_settings.check_frontend(self)

    @property
    def nodes_without_password(self) -> str:
        return without_password(self.db) if self.db else ", ".join(self.nodes)


FRONTEND_SETTING_TYPES: Mapping[str, SettingType] = {
    "nodes": list_setting(
        is_address, "HOST:PORT of nodes with commas between them, for example a:8400,b:8400"
    ),
    **{name: SETTING_TYPES[name] for name in FrontendSettings.__struct_fields__ if name in SETTING_TYPES},
}


def load_frontend_settings(
    flags: Mapping[str, object], environ: Mapping[str, str], config_file: Path | None = None
) -> FrontendSettings:
    """`flags` by setting name; None means not given. Without `config_file`, LIVENESS_CONFIG may name one."""
    values = load_values(FRONTEND_SETTING_TYPES, flags, environ, config_file)
    if problem := add_password_from_file(values):
        raise SettingsError(problem)
    return FrontendSettings(**values)
