"""`liveness frontend`: check the settings, run the frontend, print its address."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import click

from liveness.cli.errors import UsageError, fail_server
from liveness.cli.serve import INTERRUPTED, WILDCARD_HOSTS, program_name
from liveness.cli.server_parts import needs_server_parts
from liveness.config.frontend_settings import FrontendSettings, load_frontend_settings
from liveness.config.settings import SettingsError, host_port
from liveness.security.posture import check_posture
from liveness.version import VERSION


@click.command()
@click.option("--nodes", metavar="HOST:PORT,…", help="Some of the nodes; they know the others.")
@click.option("--db", metavar="URL", help="Find the nodes in their database instead: postgresql://…")
@click.option("--listen", metavar="HOST:PORT", help="Where to listen.  [default: 127.0.0.1:7401]")
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Where to serve HTTP: health, metrics, the API, the dashboard.  [default: off]",
)
@click.option(
    "--http-hosts", metavar="A,B", help="More host names under which clients reach HTTP.  [default: none]"
)
@click.option("--config", metavar="FILE.toml", help="Settings in a file.  [default: LIVENESS_CONFIG]")
@click.option("--auth", metavar="MODE", help="on: every call needs a credential.  [default: off]")
@click.option(
    "--insecure/--no-insecure",
    default=None,
    help="Allow listeners beyond loopback without TLS and authentication.",
)
@click.option("--reflection/--no-reflection", default=None, help="Enable gRPC reflection.  [default: on]")
@click.option("--traces", metavar="URL", help="Send traces to an OTLP collector.  [default: off]")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.  [default: info]")
@click.option("--log-format", metavar="FORMAT", help="auto, console or json.  [default: auto]")
@needs_server_parts
def frontend(*, config: str | None, **flags: Any) -> None:
    """Start a process that only forwards calls to nodes.

    A frontend stores nothing and owns no shards. Clients need only its address, it batches many single heartbeats into
    one call to a node, and it may be stopped and started at any time.

    \b
    Examples:
      liveness frontend --nodes a.example:7400,b.example:7400
      liveness frontend --db postgresql://liveness:secret@db.example:5432/liveness --insecure --listen 0.0.0.0:7401
      liveness frontend --nodes a.example:7400 --http 0.0.0.0:7480 --insecure
    """
    settings = settings_from_flags(flags, config)
    if (why := check_posture(settings)) is not None:
        raise UsageError(why)
    # gRPC reads this when it is imported. The command itself reports a port that is in use, in one sentence.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # Imported late: wrong flags and help must be answered at once.
    from liveness.cli.frontend_process import serve as run_frontend
    from liveness.rpc.tracing import TracingNotInstalled
    from liveness.store.errors import StoreUnusable

    def on_ready(address: str, url: str) -> None:
        # JSON logs are read by programs; the log contains the address.
        if settings.log_format != "json":
            click.echo(banner(settings, address, url, program_name()))

    try:
        code = asyncio.run(run_frontend(settings, on_ready=on_ready))
    except KeyboardInterrupt:
        code = INTERRUPTED
    except (StoreUnusable, TracingNotInstalled) as error:
        fail_server(UsageError(str(error)), settings.log_format, error)
    sys.exit(code)


def settings_from_flags(flags: dict[str, Any], config: str | None) -> FrontendSettings:
    try:
        return load_frontend_settings(flags, os.environ, None if config is None else Path(config))
    except SettingsError as error:
        raise UsageError(str(error)) from error


def banner(settings: FrontendSettings, address: str, url: str = "", program: str = "liveness") -> str:
    listen_address = host_port(address)
    assert listen_address is not None, address
    client_address = address
    if listen_address.host in WILDCARD_HOSTS:
        client_address = f"{WILDCARD_HOSTS[listen_address.host]}:{listen_address.port}"
    return "\n".join(
        [
            f"liveness {VERSION} frontend is ready",
            f"  listening on  {address}",
            *([f"  dashboard     {url}"] if url else []),
            f"  nodes         {settings.nodes_without_password}",
            "",
            "Try next, in another terminal:",
            f"  {program} workers list --address {client_address}",
            "",
            "Ctrl-C stops it.",
        ]
    )
