"""`liveness bridge`: run a proxy between another engine and its workers."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from liveness.cli.client import Milliseconds, credentials_of
from liveness.cli.errors import CommandError, UsageError
from liveness.cli.serve import INTERRUPTED
from liveness.cli.server_parts import needs_server_parts
from liveness.cli.shared_options import CONNECTION_NAMES, SharedOptionsGroup, connection_options
from liveness.config.formats import is_address
from liveness.config.settings import SettingsError, load_client_settings
from liveness.security.posture import is_loopback
from liveness.version import VERSION

if TYPE_CHECKING:
    from liveness.bridges.temporal.settings import BridgeSettings

HINTS_OFF = "off"
LEASE_MS_MIN = 2_000


@click.group(cls=SharedOptionsGroup)
def bridge() -> None:
    """Run a proxy between another engine and its workers.

    \b
    Example:
      liveness bridge temporal --upstream temporal.internal:7233 --listen 0.0.0.0:7233
    """


def upstream_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say how to reach Temporal."""
    for option in reversed(
        (
            click.option(
                "--upstream-tls",
                is_flag=True,
                help="Connect to Temporal with TLS.  [default: with a file for it]",
            ),
            click.option("--upstream-ca-file", metavar="FILE", help="Who signs Temporal's certificate."),
            click.option("--upstream-cert-file", metavar="FILE", help="The certificate to show Temporal."),
            click.option("--upstream-key-file", metavar="FILE", help="Its key."),
            click.option(
                "--upstream-server-name",
                metavar="NAME",
                default="",
                help="The name in Temporal's certificate.",
            ),
            click.option(
                "--upstream-api-key-file",
                metavar="FILE",
                help="An API key for calls that bring no credential of their own.",
            ),
        )
    ):
        command = option(command)
    return command


@bridge.command()
@click.option("--upstream", metavar="HOST:PORT,…", required=True, help="Temporal's frontend.")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:7233",
    show_default=True,
    help="Where workers connect.",
)
@connection_options
@upstream_options
@click.option("--tls-cert-file", metavar="FILE", help="The certificate for workers.  [default: no TLS]")
@click.option("--tls-key-file", metavar="FILE", help="Its key.")
@click.option("--tls-worker-ca-file", metavar="FILE", help="Workers must show a certificate that it signed.")
@click.option(
    "--lease",
    type=Milliseconds(),
    default=0,
    help="How long a worker may be silent.  [default: three of its heartbeat intervals]",
)
@click.option(
    "--restart-allowance",
    type=Milliseconds(),
    default="30s",
    show_default=True,
    help="How long no bridge may run before silence counts.",
)
@click.option(
    "--hints",
    metavar="DURATION",
    default="2s",
    show_default=True,
    help="How long a worker may take to call again after its connection broke; off behind a load balancer.",
)
@click.option("--skip", metavar="QUEUE|type:TYPE,…", default="", help="Activities to leave alone; * is any.")
@click.option(
    "--only", metavar="QUEUE|type:TYPE,…", default="", help="Leave all others alone.  [default: none]"
)
@click.option("--temporal-ui", metavar="URL", default="", help="Temporal's web page, for links to workflows.")
@click.option("--metrics", metavar="HOST:PORT", default="", help="Serve metrics there.  [default: off]")
@click.option(
    "--insecure", is_flag=True, help="Lend the bridge's own credential to everyone who can connect."
)
@click.option(
    "--log-level", metavar="LEVEL", default="info", show_default=True, help="debug, info, warning or error."
)
@click.option(
    "--log-format", metavar="FORMAT", default="auto", show_default=True, help="auto, console or json."
)
@needs_server_parts
def temporal(*, metrics: str, log_level: str, log_format: str, **flags: Any) -> None:
    """Stand between Temporal and its workers, so that the activities of a lost worker are retried within seconds.

    Point workers at the bridge instead of at Temporal; they need no other change. Everything passes unchanged. Activities of
    a worker whose heartbeats stop are given to another one.

    \b
    Examples:
      liveness bridge temporal --upstream 127.0.0.1:7233 --listen 127.0.0.1:7234
      liveness bridge temporal --upstream a:7233,b:7233 --listen 0.0.0.0:7233 --address liveness:7400 --hints off
      liveness bridge temporal --upstream ns.acct.tmprl.cloud:7233 --upstream-tls --upstream-api-key-file key --skip 'type:slow_*'
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    settings = bridge_settings(flags)
    if metrics and not is_address(metrics):
        raise UsageError(f"--metrics is {metrics!r}, but must be HOST:PORT")
    # Imported late: wrong flags and help must be answered at once.
    from liveness.bridges.temporal.bridge import ListenFailed
    from liveness.cli.bridge_process import run_bridge
    from liveness.sdk.errors import InvalidCredentials

    def on_ready(address: str) -> None:
        if log_format != "json":
            click.echo(banner(settings, address))

    try:
        code = asyncio.run(run_bridge(settings, on_ready, metrics, log_level, log_format))
    except KeyboardInterrupt:
        code = INTERRUPTED
    except (ListenFailed, InvalidCredentials) as error:
        raise CommandError(str(error)) from error
    sys.exit(code)


def bridge_settings(flags: dict[str, Any]) -> BridgeSettings:
    """Check the flags and read the files that they name."""
    from liveness.bridges.temporal.settings import BridgeSettings, ListenTls, UpstreamTls

    try:
        client = load_client_settings({name: flags[name] for name in CONNECTION_NAMES}, os.environ)
    except SettingsError as error:
        raise UsageError(str(error)) from error
    upstream = tuple(part.strip() for part in flags["upstream"].split(",") if part.strip())
    for name, addresses in (("upstream", upstream), ("listen", (flags["listen"],))):
        if not addresses or not all(map(is_address, addresses)):
            raise UsageError(f"--{name} is {flags[name]!r}, but must be HOST:PORT")
    api_key = (_read(flags, "upstream_api_key_file") or b"").decode(errors="replace").strip()
    certificate, key = _read(flags, "upstream_cert_file"), _read(flags, "upstream_key_file")
    _check_pair(flags, "upstream_cert_file", "upstream_key_file")
    _check_pair(flags, "tls_cert_file", "tls_key_file")
    ca = _read(flags, "upstream_ca_file")
    uses_tls = flags["upstream_tls"] or certificate or ca or flags["upstream_server_name"]
    if api_key and not uses_tls and not all(map(is_loopback, upstream)):
        raise UsageError("an API key is not sent in plain text; connect with --upstream-tls")
    listen_certificate, listen_key = _read(flags, "tls_cert_file"), _read(flags, "tls_key_file")
    worker_ca = _read(flags, "tls_worker_ca_file")
    if worker_ca and not listen_certificate:
        raise UsageError("--tls-worker-ca-file needs --tls-cert-file and --tls-key-file")
    if (api_key or certificate) and not (is_loopback(flags["listen"]) or worker_ca or flags["insecure"]):
        raise UsageError(
            f"everyone who can connect to {flags['listen']} would use the bridge's own credential; set --tls-worker-ca-file, "
            "listen on 127.0.0.1, or say --insecure if the network is protected otherwise"
        )
    if 0 < flags["lease"] < LEASE_MS_MIN:
        raise UsageError("--lease must be at least 2s")
    if flags["temporal_ui"] and not flags["temporal_ui"].startswith(("http://", "https://")):
        raise UsageError("--temporal-ui must begin with http:// or https://")
    return BridgeSettings(
        upstream=upstream,
        liveness=client.addresses,
        listen=flags["listen"],
        credentials=credentials_of(client),
        upstream_tls=UpstreamTls(
            ca=ca, certificate=certificate, key=key, server_name=flags["upstream_server_name"]
        )
        if uses_tls
        else None,
        upstream_api_key=api_key,
        listen_tls=ListenTls(certificate=listen_certificate, key=listen_key, client_ca=worker_ca)
        if listen_certificate and listen_key
        else None,
        lease_ms=flags["lease"],
        restart_allowance_ms=flags["restart_allowance"],
        hint_grace_ms=_hint_grace_ms(flags["hints"]),
        skip=_patterns(flags["skip"]),
        only=_patterns(flags["only"]),
        temporal_ui=flags["temporal_ui"].rstrip("/"),
    )


def _hint_grace_ms(hints: str) -> int:
    if hints == HINTS_OFF:
        return 0
    grace_ms = Milliseconds().convert(hints, None, None)
    if grace_ms < 1_000:
        raise UsageError("--hints must be off, or at least 1s")
    return grace_ms


def _patterns(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _check_pair(flags: dict[str, Any], first: str, second: str) -> None:
    if bool(flags[first]) != bool(flags[second]):
        names = [f"--{name.replace('_', '-')}" for name in (first, second)]
        raise UsageError(f"{names[0]} and {names[1]} need each other")


def _read(flags: dict[str, Any], name: str) -> bytes | None:
    if not flags[name]:
        return None
    try:
        return Path(flags[name]).read_bytes()
    except OSError as error:
        raise UsageError(
            f"--{name.replace('_', '-')}: {flags[name]} cannot be read: {error.strerror}"
        ) from error


def banner(settings: BridgeSettings, address: str) -> str:
    return "\n".join(
        [
            f"liveness {VERSION} bridge to Temporal is ready",
            f"  listening on  {address}",
            f"  Temporal      {', '.join(settings.upstream)}",
            f"  liveness      {', '.join(settings.liveness)}",
            "",
            "Point Temporal workers at the first address. Ctrl-C stops it.",
        ]
    )
