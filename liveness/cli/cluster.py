"""`liveness cluster`: the certificates that nodes and frontends show each other."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from liveness.cli.errors import UsageError
from liveness.cli.server_parts import needs_server_parts
from liveness.cli.shared_options import SharedOptionsGroup
from liveness.clock import SystemClock
from liveness.config.formats import host_port, is_host_name, split_list

DAYS_MAX = 3_650


@click.group(cls=SharedOptionsGroup)
def cluster() -> None:
    """Create the certificates that nodes and frontends show each other."""


@cluster.command()
@click.option("--dir", "folder", metavar="DIR", required=True, help="The folder to write to.")
@click.option(
    "--hosts",
    metavar="A,B",
    required=True,
    help="The hosts in the addresses that nodes advertise: names or IPs.",
)
@click.option(
    "--days",
    metavar="N",
    type=click.IntRange(1, DAYS_MAX),
    default=365,
    help="How long they are valid.  [default: 365]",
)
@needs_server_parts
def certificates(*, folder: str, hosts: str, days: int) -> None:
    """Create an authority, and a certificate for nodes and one for frontends.

    An authority in DIR is used again, so the same command renews the certificates; servers read them without a restart. Keep
    ca.key away from servers: whoever has it can join the cluster.

    \b
    Examples:
      liveness cluster certificates --dir certificates --hosts a.example,b.example
      liveness cluster certificates --dir certificates --hosts 10.0.0.7,10.0.0.8 --days 30
      liveness serve --db postgresql://… --listen 10.0.0.7:7400 --cluster-cert-file certificates/node.pem \\
          --cluster-key-file certificates/node.key --cluster-ca-file certificates/ca.pem
    """
    names = split_list(hosts)
    for name in names:
        if not is_host_name(name.removeprefix("*.")) and host_port(f"[{name}]:1") is None:
            raise UsageError(
                f"--hosts has {name!r}, but must be names or IP addresses with commas between them."
            )
    # Imported late: help must be answered at once.
    from liveness.security.certificates import NoAuthority, create_certificates

    now = datetime.fromtimestamp(SystemClock().wall_ms() / 1_000, UTC)
    try:
        written = create_certificates(Path(folder), names, now, days)
    except NoAuthority as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be written: {error.strerror}.") from error
    for path in written:
        click.echo(f"wrote {path}")
