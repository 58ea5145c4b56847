"""`liveness frontend`: check the settings, run the frontend, print its address."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import click

from liveness.cli.cluster_options import cluster_tls_options
from liveness.cli.errors import UsageError, fail_server
from liveness.cli.serve import INTERRUPTED, WILDCARD_HOSTS, program_name, warn_about_passwords
from liveness.cli.server_parts import needs_server_parts
from liveness.config.frontend_settings import FrontendSettings, load_frontend_settings
from liveness.config.settings import SettingsError, host_port
from liveness.version import VERSION


@click.command()
@click.option(
    "--nodes",
    metavar="HOST:PORT,…",
    help="Cluster addresses of some of the nodes (--cluster-listen); they know the others.",
)
@click.option("--db", metavar="URL", help="Find the nodes in their database instead: postgresql://…")
@click.option("--db-password-file", metavar="FILE", help="The file with the password of that database.")
@click.option("--listen", metavar="HOST:PORT", help="Where to listen.  [default: 127.0.0.1:7401]")
@click.option(
    "--listener",
    metavar="KIND",
    help="What takes gRPC calls in: auto, edge (native) or python.  [default: auto]",
)
@cluster_tls_options
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Where to serve HTTP: health, metrics, the API, the dashboard.  [default: off]",
)
@click.option(
    "--http-hosts", metavar="A,B", help="More host names under which clients reach HTTP.  [default: none]"
)
@click.option("--config", metavar="FILE.toml", help="Settings in a file.  [default: LIVENESS_CONFIG]")
@click.option(
    "--tls-cert-file",
    metavar="FILE",
    help="The certificate for gRPC and HTTP, in PEM format.  [default: no TLS]",
)
@click.option("--tls-key-file", metavar="FILE", help="The key of that certificate.")
@click.option(
    "--tls-client-ca-file", metavar="FILE", help="The authorities that sign certificates of clients."
)
@click.option(
    "--tls-client-auth",
    metavar="WHEN",
    help="Whether clients must have a certificate: optional or required.  [default: optional]",
)
@click.option("--auth", metavar="MODE", help="on: every call needs a credential.  [default: off]")
@click.option("--reflection/--no-reflection", default=None, help="Enable gRPC reflection.  [default: on]")
@click.option(
    "--register-self",
    metavar="MODE",
    help="on: list this process in the registry, in the namespace liveness.  [default: on]",
)
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
      liveness frontend --nodes 127.0.0.1:8400,127.0.0.1:8410
      liveness frontend --db postgresql://liveness@db.example/liveness --db-password-file /run/secrets/db --listen 10.0.0.7:7401 --insecure
      liveness frontend --nodes a.example:8400 --cluster-cert-file frontend.pem --cluster-key-file frontend.key --cluster-ca-file ca.pem
    """
    settings = settings_from_flags(flags, config)
    # Imported late: wrong flags and help must be answered at once.
    from liveness.cli.frontend_process import serve as run_frontend
    from liveness.rpc.tracing import TracingNotInstalled
    from liveness.security.posture import ExposedListeners
    from liveness.security.tls_settings import TlsFilesUnusable
    from liveness.store.errors import StoreUnusable

    def on_ready(address: str, url: str) -> None:
        warn_about_passwords(flags["db"])
        # JSON logs are read by programs; the log contains the address.
        if settings.log_format != "json":
            click.echo(banner(settings, address, url, program_name()))

    try:
        code = asyncio.run(run_frontend(settings, on_ready=on_ready))
    except KeyboardInterrupt:
        code = INTERRUPTED
    except (ExposedListeners, StoreUnusable, TlsFilesUnusable, TracingNotInstalled) as error:
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
            f"  {program} workers list --address {client_address}{' --tls' if settings.tls_cert_file else ''}",
            "",
            "Ctrl-C stops it.",
        ]
    )
