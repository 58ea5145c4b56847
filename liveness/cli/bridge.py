"""`liveness bridge`: run a proxy between another engine and its workers."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from liveness.cli.bridge_options import bridge_options, make_bridge_settings, parsed_flags
from liveness.cli.client import credentials_of
from liveness.cli.errors import CommandError, UsageError
from liveness.cli.serve import INTERRUPTED
from liveness.cli.server_parts import needs_server_parts
from liveness.cli.shared_options import CONNECTION_NAMES, SharedOptionsGroup, connection_options
from liveness.config.bridge_settings import UPSTREAM
from liveness.config.formats import is_address
from liveness.config.settings import SettingsError, load_client_settings
from liveness.version import VERSION

if TYPE_CHECKING:
    from liveness.bridges.temporal.settings import BridgeSettings


@click.group(cls=SharedOptionsGroup)
def bridge() -> None:
    """Run a proxy between another engine and its workers.

    \b
    Example:
      liveness bridge temporal --upstream temporal.internal:7233 --listen 0.0.0.0:7233
    """


@bridge.command()
@click.option("--upstream", metavar="HOST:PORT,…", required=True, help="Temporal's frontend.")
@connection_options
@bridge_options()
@click.option("--metrics", metavar="HOST:PORT", default="", help="Serve metrics there.  [default: off]")
@click.option(
    "--register-self",
    type=click.Choice(("on", "off")),
    default="on",
    show_default=True,
    help="on: list this bridge in the registry, in the namespace liveness.",
)
@click.option(
    "--insecure", is_flag=True, help="Lend the bridge's own credential to everyone who can connect."
)
@click.option(
    "--log-level",
    type=click.Choice(("debug", "info", "warning", "error")),
    default="info",
    show_default=True,
    help="How much to log.",
)
@click.option(
    "--log-format",
    type=click.Choice(("auto", "console", "json")),
    default="auto",
    show_default=True,
    help="auto: for people on a terminal, else JSON.",
)
@needs_server_parts
def temporal(*, metrics: str, register_self: str, log_level: str, log_format: str, **flags: Any) -> None:
    """Stand between Temporal and its workers, so that the activities of a lost worker are retried within seconds.

    Point workers at the bridge instead of at Temporal; they need no other change. Everything passes unchanged. Activities of
    a worker whose heartbeats stop are given to another one.

    \b
    Examples:
      liveness bridge temporal --upstream 127.0.0.1:7233 --listen 127.0.0.1:7234
      liveness bridge temporal --upstream a:7233,b:7233 --listen 0.0.0.0:7233 --address liveness:7400 --hints off
      liveness bridge temporal --upstream ns.acct.tmprl.cloud:7233 --upstream-tls --upstream-api-key-file key --skip 'type:slow_*'
    """
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
        code = asyncio.run(
            run_bridge(settings, on_ready, metrics, log_level, log_format, registers=register_self == "on")
        )
    except KeyboardInterrupt:
        code = INTERRUPTED
    except (ListenFailed, InvalidCredentials) as error:
        raise CommandError(str(error)) from error
    sys.exit(code)


def bridge_settings(flags: dict[str, Any]) -> BridgeSettings:
    """Check the flags and read the files that they name."""
    try:
        client = load_client_settings({name: flags[name] for name in CONNECTION_NAMES}, os.environ)
    except SettingsError as error:
        raise UsageError(str(error)) from error
    upstream = UPSTREAM.parse(flags["upstream"], text=True)
    if upstream is None:
        raise UsageError(f"--upstream is {flags['upstream']!r}, but must be {UPSTREAM.expected}")
    return make_bridge_settings(
        parsed_flags(flags),
        upstream=upstream,
        liveness=client.addresses,
        credentials=credentials_of(client),
        insecure=flags["insecure"],
    )


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
