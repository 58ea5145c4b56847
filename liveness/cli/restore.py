"""`liveness restore`: put a backup in the place of a SQLite node's database, and end every lease it shows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from liveness.cli.client import json_option
from liveness.cli.failure import Failure, Misuse
from liveness.cli.output import note, print_fields, print_json
from liveness.cli.progress import progress_bar
from liveness.cli.serve import settings_from
from liveness.clock import Clock, SystemClock
from liveness.settings import Settings

if TYPE_CHECKING:
    from liveness.restoring import Restored

MEANING = """\
What this means:
- Nothing that was acknowledged after the backup was made is known any more. What was scheduled since must be scheduled
  again; what was completed since is handed out again.
- All leases are over. {workers} workers were taken for inactive and {activities} activities are rescheduled. Workers that
  run come back with their next heartbeat and are told what they lost.
- Lease epochs and attempts go on from {token_floor}, above all that were ever given out, so that fencing tokens from
  before are refused by data that has seen a newer one.
- Watchers must begin anew: their resume tokens are refused.
docs/operations.md says more."""


@click.command()
@click.argument("backup", metavar="BACKUP", type=click.Path(path_type=Path), required=False)
@click.option("--db", metavar="URL", help="The database to replace.  [default: as `liveness serve` would]")
@click.option("--config", metavar="FILE.toml", help="Settings in a file.  [default: LIVENESS_CONFIG]")
@click.option("--force", is_flag=True, help="Replace the database if it exists.")
@click.option(
    "--already-restored",
    is_flag=True,
    help="The database was put back by other means, such as PostgreSQL's own: do only what must follow.",
)
@json_option
def restore(
    *,
    backup: Path | None,
    db: str | None,
    config: str | None,
    force: bool,
    already_restored: bool,
    as_json: bool,
) -> None:
    """Put BACKUP in the place of a SQLite node's database.

    No server may run on it. BACKUP is checked first, down to the checksum of each row, and stays as it is. The world has
    gone on since it was made, so all leases in it are ended and what workers held is rescheduled, under tokens above
    all earlier ones.

    \b
    Examples:
      liveness restore /backups/liveness-2026-11-16.db
      liveness restore /backups/latest.db --db sqlite:////var/lib/liveness/liveness.db --force
      liveness restore --already-restored --db postgresql://liveness@db.example/liveness
    """
    settings = settings_from({"db": db}, config)
    if already_restored == (backup is not None):
        raise Misuse(
            "name a BACKUP to restore, or say --already-restored if the database was put back by other means."
        )
    # Loaded here: a wrong flag is told at once, and help needs none of it.
    from liveness.store.errors import StoreError, StoreUnusable

    try:
        restored = _restore(settings, backup, force=force)
    except StoreUnusable as error:
        raise Misuse(str(error)) from error
    except StoreError as error:
        raise Failure(str(error)) from error
    facts = {"database": settings.db_for_people, **restored._asdict()}
    if as_json:
        print_json(facts)
        return
    print_fields([("restored", settings.db_for_people)])
    note("")
    for line in MEANING.format(**restored._asdict()).splitlines():
        note(line)


def _restore(settings: Settings, backup: Path | None, *, force: bool) -> Restored:
    from liveness.logs import configure_logs
    from liveness.restoring import restore

    configure_logs("error", "console")
    clock = SystemClock()
    with progress_bar() as tell:
        if backup is None:
            return asyncio.run(_follow_up(settings, clock, tell))
        target = settings.sqlite_path
        if target is None:
            raise Misuse(
                "liveness restore puts back SQLite files; restore PostgreSQL by its own means and then call "
                "`liveness restore --already-restored`, as docs/operations.md says."
            )
        return restore(backup, target, clock, tell, replace=force)[1]


async def _follow_up(settings: Settings, clock: Clock, tell: Callable[[str, int, int], None]) -> Restored:
    from liveness.app import open_store
    from liveness.restoring import begin_new_history
    from liveness.store.errors import WrongShardCount

    try:
        store = await open_store(settings)
    except WrongShardCount as error:
        settings = msgspec.structs.replace(settings, shards=int(str(error.fields["stored"])))
        store = await open_store(settings)
    try:
        return await begin_new_history(store, settings.shards, clock, 0, tell)
    finally:
        await store.close()
