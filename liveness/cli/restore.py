"""`liveness restore`: replace a SQLite node's database with a backup, and end every lease in it; or do the latter for a
database that was restored by other means."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from liveness.cli.errors import CommandError, UsageError
from liveness.cli.output import print_fields, print_json, print_note
from liveness.cli.progress_bar import progress_bar
from liveness.cli.serve import settings_from_flags
from liveness.cli.server_parts import needs_server_parts
from liveness.cli.shared_options import json_option
from liveness.clock import Clock, SystemClock
from liveness.config.settings import Settings

if TYPE_CHECKING:
    from liveness.engine.restore import RestoreSummary

CONSEQUENCES = """\
Consequences:
- The server has lost everything that it acknowledged after the backup was made. Activities scheduled since then must be
  scheduled again; activities completed since then are handed out again.
- All leases have ended: {workers} became inactive and {activities} rescheduled. Running workers
  return with their next heartbeat and are told which activities they lost.
- Lease epochs and attempts continue from {token_floor}, above all numbers ever given out, so that data which has seen a
  newer fencing token refuses the older ones.
- Watchers must start again from the beginning: the server refuses their resume tokens.
See docs/operations.md."""


@click.command()
@click.argument("backup", metavar="BACKUP", type=click.Path(path_type=Path), required=False)
@click.option(
    "--db", metavar="URL", help="The database to replace.  [default: the one `liveness serve` would use]"
)
@click.option("--config", metavar="FILE.toml", help="Settings in a file.  [default: LIVENESS_CONFIG]")
@click.option("--force", is_flag=True, help="Replace the database if it exists.")
@click.option(
    "--already-restored",
    is_flag=True,
    help="The database was restored by other means, such as PostgreSQL's own: only end its leases.",
)
@click.option(
    "--moved",
    is_flag=True,
    help="The database was moved with all nodes stopped and lacks nothing, as after pg_upgrade: serve it as it is.",
)
@json_option
@needs_server_parts
def restore(
    *,
    backup: Path | None,
    db: str | None,
    config: str | None,
    force: bool,
    already_restored: bool,
    moved: bool,
    as_json: bool,
) -> None:
    """Replace a SQLite node's database with BACKUP.

    No server may run on the database; if one does, nothing is changed. The command checks BACKUP first, down to the
    checksum of each row, and does not change it. Workers have gone on since the backup was made, so the command ends all
    leases in it and reschedules the activities that workers held, with fencing tokens above all earlier ones.

    \b
    Examples:
      liveness restore /backups/liveness-2026-11-16.db
      liveness restore /backups/latest.db --db sqlite:////var/lib/liveness/liveness.db --force
      liveness restore --already-restored --db postgresql://liveness@db.example/liveness
      liveness restore --moved --db postgresql://liveness@new.example/liveness
    """
    settings = settings_from_flags({"db": db}, config)
    if [backup is not None, already_restored, moved].count(True) != 1:
        raise UsageError(
            "name a BACKUP to restore, or give --already-restored if the database was restored by other means,"
            " or --moved if it was moved and lacks nothing."
        )
    if moved and settings.sqlite_path is not None:
        raise UsageError("--moved is for PostgreSQL; the file of a stopped SQLite node may be moved freely.")
    # Imported late: wrong flags and help must be answered at once.
    from liveness.store.errors import StoreError, StoreUnusable

    try:
        restored = _restore(settings, backup, force=force, moved=moved)
    except StoreUnusable as error:
        raise UsageError(str(error)) from error
    except StoreError as error:
        raise CommandError(str(error)) from error
    result_fields = {"database": settings.db_without_password}
    if restored is None:
        result = "moved"
        consequences = (
            "Nothing was changed but the record of where the database is. Nodes serve it as it was."
        )
    else:
        result = "restored"
        result_fields |= restored._asdict()
        consequences = CONSEQUENCES.format(
            workers=_count(restored.workers, "worker", "workers"),
            activities=_count(restored.activities, "activity is", "activities are"),
            token_floor=restored.token_floor,
        )
    if as_json:
        print_json(result_fields)
        return
    print_fields([(result, settings.db_without_password)])
    print_note("")
    for line in consequences.splitlines():
        print_note(line)


def _count(number: int, singular: str, plural: str) -> str:
    return f"{number} {singular if number == 1 else plural}"


def _restore(settings: Settings, backup: Path | None, *, force: bool, moved: bool) -> RestoreSummary | None:
    from liveness.engine.restore import restore
    from liveness.telemetry.logs import configure_logging

    configure_logging("error", "console")
    clock = SystemClock()
    with progress_bar() as report_progress:
        if backup is None:
            return asyncio.run(_finish_external_restore(settings, clock, report_progress, moved=moved))
        target = settings.sqlite_path
        if target is None:
            raise UsageError(
                "liveness restore works on SQLite files; restore PostgreSQL by its own means and then call "
                "`liveness restore --already-restored`, as docs/operations.md says."
            )
        return restore(backup, target, clock, report_progress, replace=force)[1]


async def _finish_external_restore(
    settings: Settings, clock: Clock, report_progress: Callable[[str, int, int], None], *, moved: bool
) -> RestoreSummary | None:
    from liveness.app import make_store
    from liveness.engine.restore import OWNER, begin_new_history, wait_until_nodes_are_silent
    from liveness.store.errors import WrongShardCount

    shards = settings.shards
    store = make_store(settings, OWNER)
    try:
        # A SQLite file is locked by this process, so the nodes that it shows have ended.
        silent = (
            await wait_until_nodes_are_silent(store, clock, report_progress)
            if settings.sqlite_path is None
            else None
        )
        try:
            await store.open(shards, OWNER, is_restore=True)
        except WrongShardCount as error:
            shards = error.stored
            await store.open(shards, OWNER, is_restore=True)
        if not moved:
            return await begin_new_history(store, shards, clock, 0, report_progress, silent)
        await store.accept_move(silent or {})
        return None
    finally:
        await store.close()
