"""`liveness frontend`: check the settings, run it, say where it is."""

from __future__ import annotations

import asyncio
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from liveness.cli.failure import Misuse
from liveness.cli.serve import EVERYWHERE, INTERRUPTED, own_name
from liveness.frontend_settings import FrontendSettings, load_frontend_settings
from liveness.settings import SettingsError, host_port


@click.command()
@click.option("--nodes", metavar="HOST:PORT,…", help="Some of the nodes; they name the others.")
@click.option("--db", metavar="URL", help="The nodes' database, instead: postgresql://…")
@click.option("--listen", metavar="HOST:PORT", help="Where to listen.  [default: 127.0.0.1:7401]")
@click.option("--config", metavar="FILE.toml", help="Settings in a file.  [default: LIVENESS_CONFIG]")
@click.option("--reflection/--no-reflection", default=None, help="Let tools list the calls.  [default: on]")
@click.option("--traces", metavar="URL", help="Tell an OTLP collector of traced calls.  [default: off]")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.  [default: info]")
@click.option("--log-format", metavar="FORMAT", help="auto, console or json.  [default: auto]")
def frontend(*, config: str | None, **flags: Any) -> None:
    """Start a process that only carries calls to nodes.

    It keeps nothing and owns nothing: clients need to know its address alone, many single heartbeats reach a node as
    one call, and it may be stopped and started at any time.

    \b
    Examples:
      liveness frontend --nodes a.example:7400,b.example:7400
      liveness frontend --db postgresql://liveness:secret@db.example:5432/liveness --listen 0.0.0.0:7401
    """
    settings = settings_from(flags, config)
    # What gRPC's core has to say about a port it cannot have, we say in one sentence. It reads this when it is loaded.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # Loaded here: a wrong flag is told at once, and help needs none of it.
    from liveness.frontend_app import serve as run_frontend
    from liveness.store.errors import StoreUnusable
    from liveness.tracing import TracesMissing

    def on_ready(address: str) -> None:
        # Who asks for JSON reads it with a program; the log tells that one where the frontend is.
        if settings.log_format != "json":
            click.echo(banner(settings, address, own_name()))

    try:
        code = asyncio.run(run_frontend(settings, on_ready=on_ready))
    except KeyboardInterrupt:
        code = INTERRUPTED
    except (StoreUnusable, TracesMissing) as error:
        raise Misuse(str(error)) from error
    sys.exit(code)


def settings_from(flags: dict[str, Any], config: str | None) -> FrontendSettings:
    try:
        return load_frontend_settings(flags, os.environ, None if config is None else Path(config))
    except SettingsError as error:
        raise Misuse(str(error)) from error


def banner(settings: FrontendSettings, address: str, program: str = "liveness") -> str:
    place = host_port(address)
    assert place is not None, address
    reached_at = address
    if place.host in EVERYWHERE:
        reached_at = f"{EVERYWHERE[place.host]}:{place.port}"
    return "\n".join(
        [
            f"liveness {version('liveness')} frontend is ready",
            f"  listening on  {address}",
            f"  nodes         {settings.nodes_for_people}",
            "",
            "Try next, in another terminal:",
            f"  {program} workers list --address {reached_at}",
            "",
            "Ctrl-C stops it.",
        ]
    )
