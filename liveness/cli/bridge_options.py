"""The flags of a bridge for Temporal workers, declared once: `liveness bridge temporal` has them as they are, `liveness serve` with
`--bridge-` before their names.

This module must not import gRPC: every call of `liveness`, even for help, loads it.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from liveness.cli.errors import UsageError
from liveness.config.bridge_settings import BRIDGE_SETTING_TYPES, HINTS_OFF, PREFIX
from liveness.config.durations import parse_ms
from liveness.config.formats import is_loopback
from liveness.config.settings import Settings

if TYPE_CHECKING:
    from liveness.bridges.temporal.settings import BridgeSettings
    from liveness.client_credentials import Credentials

F = TypeVar("F", bound=Callable[..., Any])
SERVER_PREFIX = "bridge-"
PAIRS = (("upstream_cert_file", "upstream_key_file"), ("tls_cert_file", "tls_key_file"))
"""Files that need each other."""


class BridgeFlag(NamedTuple):
    name: str
    metavar: str
    """Empty: it takes no value."""
    help: str
    default: str = ""
    """What holds if it is not given, for people."""


FLAGS = (
    BridgeFlag("listen", "HOST:PORT", "Where Temporal workers connect.", "127.0.0.1:7233"),
    BridgeFlag("upstream-tls", "", "Connect to Temporal with TLS.", "with a file for it"),
    BridgeFlag("upstream-ca-file", "FILE", "Who signs Temporal's certificate.", "this system's authorities"),
    BridgeFlag("upstream-cert-file", "FILE", "The certificate to show Temporal."),
    BridgeFlag("upstream-key-file", "FILE", "Its key."),
    BridgeFlag("upstream-server-name", "NAME", "The name in Temporal's certificate."),
    BridgeFlag(
        "upstream-api-key-file", "FILE", "An API key for calls that bring no credential of their own."
    ),
    BridgeFlag("tls-cert-file", "FILE", "The certificate for Temporal workers.", "no TLS"),
    BridgeFlag("tls-key-file", "FILE", "Its key."),
    BridgeFlag("tls-worker-ca-file", "FILE", "Temporal workers must show a certificate that it signed."),
    BridgeFlag(
        "lease", "DURATION", "How long a Temporal worker may be silent.", "three of its heartbeat intervals"
    ),
    BridgeFlag("restart-allowance", "DURATION", "How long no bridge may run before silence counts.", "30s"),
    BridgeFlag(
        "hints",
        "DURATION",
        "How long a Temporal worker may take to call again after its connection broke; off behind a load balancer.",
        "2s",
    ),
    BridgeFlag("skip", "QUEUE|type:TYPE,…", "Activities to leave alone; * is any.", "none"),
    BridgeFlag("only", "QUEUE|type:TYPE,…", "Leave all others alone.", "none"),
    BridgeFlag("temporal-ui", "URL", "Temporal's web page, for links to workflows."),
)


def bridge_options(prefix: str = "") -> Callable[[F], F]:
    """Add the flags of a bridge to a command, each with `prefix` before its name. A flag that is not given is None."""

    def decorate(command: F) -> F:
        for flag in reversed(FLAGS):
            shown_default = f"  [default: {flag.default}]" if flag.default else ""
            value: dict[str, Any] = {"metavar": flag.metavar} if flag.metavar else {"is_flag": True}
            option = click.option(
                f"--{prefix}{flag.name}", default=None, help=flag.help + shown_default, **value
            )
            command = option(command)
        return command

    return decorate


def parsed_flags(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a bridge from the flags of its own command: those that are given, checked, and else the defaults."""
    defaults = Settings()
    values = {}
    for name, setting_type in BRIDGE_SETTING_TYPES.items():
        if flags[name] is None:
            values[name] = getattr(defaults, PREFIX + name)
            continue
        values[name] = setting_type.parse(flags[name], text=True)
        if values[name] is None:
            raise UsageError(f"{_flag('', name)} is {flags[name]!r}, but must be {setting_type.expected}")
    return values


def server_values(settings: Settings) -> dict[str, Any]:
    """The settings of a bridge from those of the server that runs it."""
    return {name: getattr(settings, PREFIX + name) for name in BRIDGE_SETTING_TYPES}


def make_bridge_settings(
    values: Mapping[str, Any],
    *,
    upstream: tuple[str, ...],
    liveness: tuple[str, ...],
    credentials: Credentials,
    insecure: bool,
    prefix: str = "",
) -> BridgeSettings:
    """Check what depends on several settings, and read the files that they name. `insecure`: lend the bridge's own credential to
    everyone who can connect. `prefix`: of the flags, for messages."""
    from liveness.bridges.temporal.settings import BridgeSettings, ListenTls, UpstreamTls

    def flag(name: str) -> str:
        return _flag(prefix, name)

    def read(name: str) -> bytes | None:
        return _read(flag(name), values[name])

    for first, second in PAIRS:
        if bool(values[first]) != bool(values[second]):
            raise UsageError(f"{flag(first)} and {flag(second)} need each other")
    if any(_is_own(address, values["listen"]) for address in upstream):
        raise UsageError(
            f"the bridge would call itself at {values['listen']}; give it another address than Temporal's with {flag('listen')}"
        )
    api_key = (read("upstream_api_key_file") or b"").decode(errors="replace").strip()
    ca, certificate, key = read("upstream_ca_file"), read("upstream_cert_file"), read("upstream_key_file")
    uses_tls = values["upstream_tls"] or certificate or ca or values["upstream_server_name"]
    if api_key and not uses_tls and not all(map(is_loopback, upstream)):
        raise UsageError(f"an API key is not sent in plain text; connect with {flag('upstream_tls')}")
    listen_certificate, listen_key = read("tls_cert_file"), read("tls_key_file")
    worker_ca = read("tls_worker_ca_file")
    if worker_ca and not listen_certificate:
        raise UsageError(
            f"{flag('tls_worker_ca_file')} needs {flag('tls_cert_file')} and {flag('tls_key_file')}"
        )
    if (api_key or certificate) and not (is_loopback(values["listen"]) or worker_ca or insecure):
        raise UsageError(
            f"everyone who can connect to {values['listen']} would use the bridge's own credential; set "
            f"{flag('tls_worker_ca_file')}, listen on 127.0.0.1, or say --insecure if the network is protected otherwise"
        )
    _check_files(values, flag)
    return BridgeSettings(
        upstream=upstream,
        liveness=liveness,
        listen=values["listen"],
        credentials=credentials,
        upstream_tls=UpstreamTls(
            ca=ca, certificate=certificate, key=key, server_name=values["upstream_server_name"]
        )
        if uses_tls
        else None,
        upstream_api_key=api_key,
        listen_tls=ListenTls(certificate=listen_certificate, key=listen_key, client_ca=worker_ca)
        if listen_certificate and listen_key
        else None,
        lease_ms=parse_ms(values["lease"]) or 0,
        restart_allowance_ms=parse_ms(values["restart_allowance"]) or 0,
        hint_grace_ms=0 if values["hints"] == HINTS_OFF else parse_ms(values["hints"]) or 0,
        skip=values["skip"],
        only=values["only"],
        temporal_ui=values["temporal_ui"].rstrip("/"),
    )


def _flag(prefix: str, name: str) -> str:
    return f"--{prefix}{name.replace('_', '-')}"


def _read(flag: str, file: str) -> bytes | None:
    if not file:
        return None
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"{flag}: {file} cannot be read: {error.strerror}") from error


def _check_files(values: Mapping[str, Any], flag: Callable[[str], str]) -> None:
    """Check the content of files that can be read."""
    for first, second in PAIRS:
        if values[first] and not _is_pair(values[first], values[second]):
            raise UsageError(
                f"{flag(first)} and {flag(second)} are not a certificate and its key, unencrypted and in PEM format"
            )
    for name in ("upstream_ca_file", "tls_worker_ca_file"):
        if values[name] and not _has_certificate(values[name]):
            raise UsageError(f"{flag(name)}: {values[name]} has no certificate in PEM format")
    name = "upstream_api_key_file"
    if values[name] and not Path(values[name]).read_bytes().strip():
        raise UsageError(f"{flag(name)}: {values[name]} is empty")


def _is_pair(cert_file: str, key_file: str) -> bool:
    try:
        # Without a password, Python would ask for one on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert_file, key_file, password="")
    except (OSError, ValueError):
        return False
    return True


def _has_certificate(ca_file: str) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=ca_file)
    except (OSError, ValueError):
        return False
    return True


def _is_own(upstream: str, listen: str) -> bool:
    """Whether the bridge itself listens at the address of its upstream."""
    (host, _, port), (own_host, _, own_port) = upstream.rpartition(":"), listen.rpartition(":")
    on_all = own_host in ("0.0.0.0", "[::]")
    return port == own_port and (
        host == own_host or (is_loopback(upstream) and (on_all or is_loopback(listen)))
    )
