"""The settings of a bridge for Temporal workers: `liveness bridge temporal` has them as its flags, and a server that runs a bridge
itself has them with `bridge_` before their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from liveness.config.durations import parse_ms
from liveness.config.formats import host_port, is_address, is_host_name
from liveness.config.setting_types import (
    SettingsError,
    SettingType,
    bool_setting,
    list_setting,
    string_setting,
)

if TYPE_CHECKING:
    from liveness.config.settings import Settings

PREFIX = "bridge_"
HINTS_OFF = "off"
LEASE_MS_MIN = 2_000
HINTS_MS_MIN = 1_000
_FILE_NAME = string_setting(lambda text: "\0" not in text, "the name of a file")
_PATTERNS = list_setting(
    lambda text: text != "" and text.isprintable(),
    "task queues, and activity types as type:NAME, with commas between them, where * stands for any characters",
    may_be_empty=True,
)


def _is_duration(text: str, ms_min: int) -> bool:
    ms = parse_ms(text)
    return ms is not None and ms >= ms_min


BRIDGE_SETTING_TYPES: Mapping[str, SettingType] = {
    "listen": string_setting(
        lambda text: host_port(text) is not None, "HOST:PORT, for example 127.0.0.1:7233"
    ),
    "upstream_tls": bool_setting(),
    "upstream_ca_file": _FILE_NAME,
    "upstream_cert_file": _FILE_NAME,
    "upstream_key_file": _FILE_NAME,
    "upstream_server_name": string_setting(
        lambda text: text == "" or is_host_name(text), "the name of a host, without a port"
    ),
    "upstream_api_key_file": _FILE_NAME,
    "tls_cert_file": _FILE_NAME,
    "tls_key_file": _FILE_NAME,
    "tls_worker_ca_file": _FILE_NAME,
    "lease": string_setting(
        lambda text: text == "" or _is_duration(text, LEASE_MS_MIN), "a duration of at least 2s, like 30s"
    ),
    "restart_allowance": string_setting(lambda text: _is_duration(text, 0), "a duration like 30s"),
    "hints": string_setting(
        lambda text: text == HINTS_OFF or _is_duration(text, HINTS_MS_MIN),
        "off, or a duration of at least 1s, like 2s",
    ),
    "skip": _PATTERNS,
    "only": _PATTERNS,
    "temporal_ui": string_setting(
        lambda text: text == "" or text.startswith(("http://", "https://")), "http://… or https://…"
    ),
}
"""By name without the prefix."""
UPSTREAM = list_setting(is_address, "HOST:PORT of Temporal's frontend, or several with commas between them")
SERVER_SETTING_TYPES: Mapping[str, SettingType] = {
    "bridge_temporal": list_setting(is_address, UPSTREAM.expected, may_be_empty=True),
    **{PREFIX + name: setting_type for name, setting_type in BRIDGE_SETTING_TYPES.items()},
}


def check(settings: Settings, defaults: Mapping[str, object]) -> None:
    """Raise `SettingsError` if a bridge is described, but not asked for."""
    if settings.bridge_temporal:
        return
    for name in SERVER_SETTING_TYPES:
        if getattr(settings, name) != defaults[name]:
            raise SettingsError(f"{name} is set, but there is no Temporal to bridge to; set bridge_temporal.")
