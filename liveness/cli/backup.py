"""`liveness backup`: copy a SQLite node's database. The server may run meanwhile."""

from __future__ import annotations

from pathlib import Path

import click

from liveness.cli.errors import CommandError, UsageError
from liveness.cli.output import print_fields, print_json
from liveness.cli.progress_bar import progress_bar
from liveness.cli.serve import settings_from_flags
from liveness.cli.server_parts import needs_server_parts
from liveness.cli.shared_options import json_option


@click.command()
@click.argument("target", metavar="TARGET", type=click.Path(path_type=Path))
@click.option(
    "--db", metavar="URL", help="The database to copy.  [default: the one `liveness serve` would use]"
)
@click.option("--config", metavar="FILE.toml", help="Settings in a file.  [default: LIVENESS_CONFIG]")
@click.option("--force", is_flag=True, help="Replace TARGET if it exists.")
@json_option
@needs_server_parts
def backup(*, target: Path, db: str | None, config: str | None, force: bool, as_json: bool) -> None:
    """Copy a SQLite node's database to TARGET; the server may run.

    The copy contains everything that the server acknowledged before the command was called. The command checks the copy,
    down to the checksum of each row, and only then gives it the name TARGET. An interrupted backup leaves
    TARGET.unfinished, which the next backup removes.

    \b
    Examples:
      liveness backup /backups/liveness-2026-11-16.db
      liveness backup --db sqlite:////var/lib/liveness/liveness.db --force /backups/latest.db
    """
    settings = settings_from_flags({"db": db}, config)
    source = settings.sqlite_path
    if source is None:
        raise UsageError(
            "liveness backup copies SQLite files; back up PostgreSQL with pg_basebackup or pg_dump, "
            "as docs/operations.md says."
        )
    # Imported late: wrong flags and help must be answered at once.
    from liveness.store.backup import create_backup
    from liveness.store.errors import StoreError, StoreUnusable

    try:
        with progress_bar() as report_progress:
            contents = create_backup(source, target, report_progress, replace=force)
    except StoreUnusable as error:
        raise UsageError(str(error)) from error
    except StoreError as error:
        raise CommandError(str(error)) from error
    if as_json:
        print_json({"target": str(target), **contents._asdict()})
        return
    print_fields(
        [("backup", target), *((name.replace("_", " "), value) for name, value in contents._asdict().items())]
    )
