"""Rules for the settings of the cluster's own port, which nodes and frontends use, and clients do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from liveness.config.formats import SQLITE, host_port, is_loopback
from liveness.config.setting_types import SettingsError, SettingType, string_setting

if TYPE_CHECKING:
    from liveness.config.frontend_settings import FrontendSettings
    from liveness.config.settings import Settings

PORT_OFFSET = 1_000
"""The default port of the cluster listener is that of the public listener plus this."""
TLS_FILES = ("cluster_cert_file", "cluster_key_file", "cluster_ca_file")
TLS_SETTING_TYPES: Mapping[str, SettingType] = dict.fromkeys(
    TLS_FILES, string_setting(lambda text: "\0" not in text, "the name of a file")
)
_WAY_OUT = (
    "set cluster_cert_file, cluster_key_file and cluster_ca_file (`liveness cluster certificates` makes them), "
    "or pass --insecure if nobody else can reach it."
)


def listen_address(settings: Settings) -> str:
    """Where the cluster listener binds; empty: there is none."""
    if settings.cluster_listen:
        return settings.cluster_listen
    public = host_port(settings.listen)
    if settings.db.startswith(SQLITE) or public is None:
        return ""
    host = settings.listen.rpartition(":")[0]
    return f"{host}:{public.port + PORT_OFFSET if public.port else 0}"


def check(settings: Settings) -> None:
    """Raise `SettingsError` unless a node's cluster listener is possible, and safe where others can reach it."""
    listen = listen_address(settings)
    if not listen:
        _check_tls_files(settings)
        return
    if host_port(listen) is None:
        raise SettingsError(
            f"listen is {settings.listen}, so there is no port {PORT_OFFSET} above it for other nodes; set cluster_listen."
        )
    advertised, public = host_port(settings.advertise), host_port(settings.listen)
    if not settings.cluster_listen and advertised and public and advertised.port == public.port:
        raise SettingsError(
            f"advertise is {settings.advertise}, but other nodes reach this one at its cluster listener, {listen}; "
            "advertise the port of that one, or set cluster_listen, too."
        )
    if _check_tls_files(settings) or settings.insecure:
        return
    for name, address in (("cluster_listen", listen), ("advertise", settings.advertise)):
        if address and not is_loopback(address):
            raise SettingsError(
                f"{name} is {address}, beyond loopback, but the cluster has no TLS; {_WAY_OUT}"
            )


def check_frontend(settings: FrontendSettings) -> None:
    """Raise `SettingsError` if a frontend would call nodes beyond loopback without TLS."""
    if _check_tls_files(settings) or settings.insecure:
        return
    for address in settings.nodes:
        if not is_loopback(address):
            raise SettingsError(
                f"nodes has {address}, beyond loopback, but the cluster has no TLS; {_WAY_OUT}"
            )


def _check_tls_files(settings: Settings | FrontendSettings) -> bool:
    """Return whether the files for TLS are set: all of them or none."""
    missing = [name for name in TLS_FILES if not getattr(settings, name)]
    if missing and len(missing) < len(TLS_FILES):
        raise SettingsError(f"TLS between nodes needs three files; set {' and '.join(missing)}, too.")
    return not missing
