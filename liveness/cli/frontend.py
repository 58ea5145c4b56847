"""`liveness frontend`: check the settings, run it, say where it is."""

from __future__ import annotations

import asyncio
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from liveness.cli.errors import UsageError
from liveness.cli.serve import INTERRUPTED, WILDCARD_HOSTS, program_name
from liveness.cli.server_parts import needs_server_parts
from liveness.config.frontend_settings import FrontendSettings, load_frontend_settings
from liveness.config.settings import SettingsError, host_port


@click.command()
@click.option("--nodes", metavar="HOST:PORT,…", help="Some of the nodes; they name the others.")
@click.option("--db", metavar="URL", help="The nodes' database, instead: postgresql://…")
@click.option("--listen", metavar="HOST:PORT", help="Where to listen.  [default: 127.0.0.1:7401]")
@click.option("--config", metavar="FILE.toml", help="Settings in a file.  [default: LIVENESS_CONFIG]")
@click.option("--reflection/--no-reflection", default=None, help="Let tools list the calls.  [default: on]")
@click.option("--traces", metavar="URL", help="Tell an OTLP collector of traced calls.  [default: off]")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.  [default: info]")
@click.option("--log-format", metavar="FORMAT", help="auto, console or json.  [default: auto]")
@needs_server_parts
def frontend(*, config: str | None, **flags: Any) -> None:
    """Start a process that only carries calls to nodes.

    It keeps nothing and owns nothing: clients need to know its address alone, many single heartbeats reach a node as
    one call, and it may be stopped and started at any time.

    \b
    Examples:
      liveness frontend --nodes a.example:7400,b.example:7400
      liveness frontend --db postgresql://liveness:secret@db.example:5432/liveness --listen 0.0.0.0:7401
    """
    settings = settings_from_flags(flags, config)
    # What gRPC's core has to say about a port it cannot have, we say in one sentence. It reads this when it is loaded.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # Loaded here: a wrong flag is told at once, and help needs none of it.
    from liveness.frontend.app import serve as run_frontend
    from liveness.rpc.tracing import TracingNotInstalled
    from liveness.store.errors import StoreUnusable

    def on_ready(address: str) -> None:
        # Who asks for JSON reads it with a program; the log tells that one where the frontend is.
        if settings.log_format != "json":
            click.echo(banner(settings, address, program_name()))

    try:
        code = asyncio.run(run_frontend(settings, on_ready=on_ready))
    except KeyboardInterrupt:
        code = INTERRUPTED
    except (StoreUnusable, TracingNotInstalled) as error:
        raise UsageError(str(error)) from error
    sys.exit(code)


def settings_from_flags(flags: dict[str, Any], config: str | None) -> FrontendSettings:
    try:
        return load_frontend_settings(flags, os.environ, None if config is None else Path(config))
    except SettingsError as error:
        raise UsageError(str(error)) from error


def banner(settings: FrontendSettings, address: str, program: str = "liveness") -> str:
    listen_address = host_port(address)
    assert listen_address is not None, address
    client_address = address
    if listen_address.host in WILDCARD_HOSTS:
        client_address = f"{WILDCARD_HOSTS[listen_address.host]}:{listen_address.port}"
    return "\n".join(
        [
            f"liveness {version('liveness')} frontend is ready",
            f"  listening on  {address}",
            f"  nodes         {settings.nodes_without_password}",
            "",
            "Try next, in another terminal:",
            f"  {program} workers list --address {client_address}",
            "",
            "Ctrl-C stops it.",
        ]
    )
