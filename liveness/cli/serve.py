"""`liveness serve`: check the settings, run the server, print its address."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from shutil import which
from typing import Any

import click

from liveness.cli.bridge_options import SERVER_PREFIX, bridge_options
from liveness.cli.cluster_options import cluster_tls_options
from liveness.cli.errors import CommandError, UsageError, fail_server
from liveness.cli.server_parts import needs_server_parts
from liveness.config.database_password import has_password
from liveness.config.settings import Settings, SettingsError, host_port, load_settings
from liveness.version import VERSION

INTERRUPTED = 130
WILDCARD_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
"""Loopback addresses for clients on this machine, of a server that listens on all interfaces."""


class ServeCommand(click.Command):
    """Its help ends with the settings that have no flag."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from liveness.config.setting_docs import setting_docs  # only for help

        flags = {parameter.name for parameter in self.params}
        rows = [
            (setting.variable, f"{setting.text}  [default: {setting.default or 'none'}]".strip())
            for setting in setting_docs()
            if setting.name not in flags
        ]
        with formatter.section(
            "Settings without a flag, as variables (in the file: without LIVENESS_, in lower case)"
        ):
            formatter.write_dl(rows)


@click.command(cls=ServeCommand)
@click.option(
    "--db", metavar="URL", help="sqlite:///FILE or postgresql://…  [default: sqlite:///liveness.db]"
)
@click.option("--db-password-file", metavar="FILE", help="The file with the password for PostgreSQL.")
@click.option("--listen", metavar="HOST:PORT", help="Where to listen for gRPC.  [default: 127.0.0.1:7400]")
@click.option(
    "--listener",
    metavar="KIND",
    help="What takes gRPC calls in: auto, edge (native) or python.  [default: auto]",
)
@click.option(
    "--http", metavar="HOST:PORT", help="Where to listen for HTTP, or off.  [default: 127.0.0.1:7480]"
)
@click.option(
    "--http-hosts", metavar="A,B", help="More host names under which clients reach HTTP.  [default: none]"
)
@click.option(
    "--cluster-listen",
    metavar="HOST:PORT",
    help="Where to listen for other nodes and frontends.  [default: PostgreSQL: --listen with its port + 1000; SQLite: none]",
)
@click.option(
    "--advertise",
    metavar="HOST:PORT",
    help="Where other nodes and frontends reach this one.  [default: --cluster-listen]",
)
@cluster_tls_options
@click.option("--shards", metavar="N", help="Fixed when the database is created.  [default: 64]")
@click.option("--config", metavar="FILE.toml", help="Settings in a file.  [default: LIVENESS_CONFIG]")
@click.option("--auth", metavar="MODE", help="on: every call needs a credential.  [default: off]")
@click.option("--auth-jwt-issuer", metavar="ISS", help="Accept JWTs of this issuer.  [default: none]")
@click.option("--auth-jwt-audience", metavar="AUD", help="The audience that JWTs must name.")
@click.option("--auth-jwt-keys", metavar="FILE|URL", help="The issuer's keys: a JSON Web Key Set.")
@click.option(
    "--auth-jwt-grants", metavar="CLAIM=PATTERN=>GRANT,…", help="What claims and certificates grant."
)
@click.option("--namespaces", metavar="A,B", help="The namespaces to serve.  [default: any]")
@click.option(
    "--webhook-url", metavar="URL", help="Send reschedules to another engine.  [default: match them]"
)
@click.option(
    "--webhook-secret-file", metavar="FILE", help="The file with the secret that signs webhook calls."
)
@click.option(
    "--webhook-queues",
    metavar="NAMESPACE/QUEUE,…",
    help="Which reschedules to send; * is any.  [default: */*]",
)
@click.option(
    "--relay", metavar="URL,…", help="Publish reschedules to NATS: nats://HOST:4222.  [default: match them]"
)
@click.option("--relay-creds-file", metavar="FILE", help="The file with NATS credentials.")
@click.option(
    "--relay-queues",
    metavar="NAMESPACE/QUEUE,…",
    help="Which reschedules to publish; * is any.  [default: */*]",
)
@click.option(
    "--relay-events/--no-relay-events", default=None, help="Publish all events too.  [default: off]"
)
@click.option("--relay-stream", metavar="NAME", help="The JetStream stream.  [default: LIVENESS]")
@click.option(
    "--relay-replicas", metavar="N", help="Replicas of the stream, if the server creates it.  [default: 1]"
)
@click.option(
    "--bridge-temporal",
    metavar="HOST:PORT,…",
    help="Run a bridge for Temporal workers, to Temporal's frontend.  [default: none]",
)
@bridge_options(SERVER_PREFIX)
@click.option(
    "--door",
    metavar="DOOR",
    multiple=True,
    help="A door for clients of other systems: noetl, or pgai=postgresql://…; may be repeated.  [default: none]",
)
@click.option(
    "--door-noetl-replicas",
    metavar="WHAT",
    help="Second processes under a name of NoETL's: show, refuse or number.  [default: show]",
)
@click.option(
    "--door-pgai-hints",
    metavar="DURATION",
    help="How long a pgai worker counts as alive after its heartbeat session ended, or off.  [default: 2s]",
)
@click.option(
    "--door-pgai-restart-allowance",
    metavar="DURATION",
    help="How long silence means nothing after the database of pgai workers restarted.  [default: 1h]",
)
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
@click.option("--reflection/--no-reflection", default=None, help="Enable gRPC reflection.  [default: on]")
@click.option(
    "--register-self",
    metavar="MODE",
    help="on: list this process in the registry, in the namespace liveness.  [default: on]",
)
@click.option("--traces", metavar="URL", help="Send traces to an OTLP collector.  [default: off]")
@click.option(
    "--component-metrics-otlp",
    metavar="URL",
    help="Forward metrics that components report to an OTLP collector.  [default: off]",
)
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.  [default: info]")
@click.option("--log-format", metavar="FORMAT", help="auto, console or json.  [default: auto]")
@needs_server_parts
def serve(*, config: str | None, **flags: Any) -> None:
    """Start a server.

    The server takes each setting from its flag, else from its variable (--log-level: LIVENESS_LOG_LEVEL), else from the
    TOML file (log_level = "info"), else from its default.

    \b
    Examples:
      liveness serve
      liveness serve --db sqlite:////var/lib/liveness/liveness.db --listen 10.0.0.7:7400 --insecure
      liveness serve --db postgresql://liveness@db.example:5432/liveness --db-password-file /run/secrets/db
      LIVENESS_SHARDS=128 liveness serve --config liveness.toml
      LIVENESS_WEBHOOK_SECRET=… liveness serve --webhook-url https://engine.example/reschedules
      liveness serve --bridge-temporal 127.0.0.1:7233 --bridge-listen 127.0.0.1:7234
      liveness serve --door pgai=postgresql://liveness@db.example/app
      liveness serve --relay nats://a.example:4222,nats://b.example:4222 --relay-replicas 3
    """
    flags["door"] = flags["door"] or None
    settings = settings_from_flags(flags, config)
    # Imported late: wrong flags and help must be answered at once.
    from liveness.cli.bridge_process import BridgeUnusable
    from liveness.cli.door_process import DoorUnusable
    from liveness.cli.server_process import serve as run_server
    from liveness.rpc.tracing import TracingNotInstalled
    from liveness.security.posture import ExposedListeners
    from liveness.security.tls_settings import TlsFilesUnusable
    from liveness.store.errors import StoreError, StoreUnusable

    def on_ready(address: str, url: str) -> None:
        warn_about_passwords(flags["db"], flags["door"] or ())
        # JSON logs are read by programs; the log contains the address.
        if settings.log_format != "json":
            click.echo(banner(settings, address, url, program_name()))

    try:
        code = asyncio.run(run_server(settings, on_ready=on_ready))
    except KeyboardInterrupt:
        code = INTERRUPTED
    except (
        BridgeUnusable,
        DoorUnusable,
        ExposedListeners,
        StoreUnusable,
        TlsFilesUnusable,
        TracingNotInstalled,
    ) as error:
        fail_server(UsageError(str(error)), settings.log_format, error)
    except StoreError as error:
        message = f"the server cannot start on {settings.db_without_password}: {error}"
        fail_server(CommandError(message), settings.log_format, error)
    sys.exit(code)


def settings_from_flags(flags: dict[str, Any], config: str | None) -> Settings:
    try:
        return load_settings(flags, os.environ, None if config is None else Path(config))
    except SettingsError as error:
        raise UsageError(str(error)) from error


def warn_about_passwords(db: str | None, doors: tuple[str, ...] = ()) -> None:
    """Log that the flags --db and --door show a password. Call it once logging is configured."""
    import structlog  # late: wrong flags and help must be answered at once

    if db is not None and has_password(db):
        structlog.get_logger("liveness.app").warning(
            "--db shows the database password to every user of this machine; set LIVENESS_DB or --db-password-file instead"
        )
    if any(map(has_password, doors)):
        structlog.get_logger("liveness.app").warning(
            "--door shows a database password to every user of this machine; set LIVENESS_DOOR, or use a passfile or a service file"
        )


def program_name() -> str:
    """The command to type in this folder: the program may be in a virtual environment that is not active."""
    if which("liveness"):
        return "liveness"
    program = Path(sys.argv[0])
    return os.path.relpath(program) if program.name == "liveness" else "liveness"


def banner(settings: Settings, address: str, url: str = "", program: str = "liveness") -> str:
    listen_address = host_port(address)
    assert listen_address is not None, address
    client_address = address
    if listen_address.host in WILDCARD_HOSTS:
        client_address = f"{WILDCARD_HOSTS[listen_address.host]}:{listen_address.port}"
    option = "" if client_address == "127.0.0.1:7400" else f" --address {client_address}"
    option += " --tls" if settings.tls_cert_file else ""
    lines = [
        f"liveness {VERSION} is ready",
        f"  listening on  {address}",
        *([f"  dashboard     {url}"] if url else []),
        f"  database      {settings.db_without_password}",
        "",
        "Try next, in another terminal:",
        f"  {program} workers list{option}",
        f"  {program} config get{option}",
        *([f"  curl {url}v1/namespaces/default/workers"] if url else []),
    ]
    if settings.reflection and not settings.tls_cert_file:
        heartbeat = '{"namespace": "default", "heartbeat": {"worker_instance_key": "worker-1"}}'
        call = "liveness.v1.LivenessService/RecordWorkerHeartbeat"
        lines.append(f"  grpcurl -plaintext -d '{heartbeat}' {client_address} {call}")
    return "\n".join([*lines, "", "Ctrl-C stops it."])
