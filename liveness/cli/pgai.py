"""`liveness pgai`: install pgai's worker tracking in a PostgreSQL database, remove it, and tell what is there."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click

from liveness.cli.errors import CommandError, UsageError
from liveness.cli.output import print_fields, print_json, print_note
from liveness.cli.server_parts import needs_server_parts
from liveness.cli.shared_options import SharedOptionsGroup, json_option
from liveness.config.doors import DSN_RULE
from liveness.config.settings import PGAI_DSN_VARIABLE, SettingsError, load_pgai_dsn

if TYPE_CHECKING:
    from liveness.doors.pgai.installation import Status

ResultT = TypeVar("ResultT")

MEANINGS = {
    "none": "nothing is installed",
    "liveness": "installed by liveness",
    "stock": "installed by pgai (followed without writing to it)",
    "incomplete": "another installation, which is incomplete",
    "conflict": "installed by liveness, with objects of others beside it",
}


def dsn_option(command: Callable[..., None]) -> Callable[..., None]:
    return click.option(
        "--dsn",
        metavar="URL",
        help=f"The database: {DSN_RULE}.  [default: {PGAI_DSN_VARIABLE}]",
    )(command)


@click.group(cls=SharedOptionsGroup)
def pgai() -> None:
    """Install pgai's worker tracking in a PostgreSQL database.

    pgai's vectorizer workers find the tables and functions there and heartbeat into them; `liveness serve --door pgai=URL` follows them.

    \b
    Examples:
      liveness pgai install --dsn postgresql://owner@db.example/app --grant pgai_worker
      LIVENESS_PGAI_DSN=service=app liveness pgai status
    """


@pgai.command()
@dsn_option
@click.option(
    "--grant", metavar="ROLE", multiple=True, help="A role of workers, which may call the functions."
)
@click.option(
    "--grant-follower",
    metavar="ROLE",
    multiple=True,
    help="The role of a server that follows the tables, if it does not own them.",
)
@json_option
@needs_server_parts
def install(
    *, dsn: str | None, grant: tuple[str, ...], grant_follower: tuple[str, ...], as_json: bool
) -> None:
    """Create the tables, functions and view where they are missing.

    Everything happens in one transaction, and again without effect. An installation of pgai's own stays as it is.

    \b
    Examples:
      liveness pgai install --dsn postgresql://owner@db.example/app --grant pgai_worker
      liveness pgai install --dsn service=app --grant pgai_worker --grant-follower liveness
    """
    from liveness.doors.pgai import installation

    status = _run(lambda url: installation.install(url, grant, grant_follower), dsn)
    _print_status(status, as_json)
    if status.kind == installation.Kind.STOCK and not as_json:
        print_note(
            "pgai's own installation is there: nothing was created or granted, and liveness follows it without writing to it."
        )


@pgai.command()
@dsn_option
@click.option("--force", is_flag=True, help="Also if workers have sent heartbeats recently.")
@json_option
@needs_server_parts
def uninstall(*, dsn: str | None, force: bool, as_json: bool) -> None:
    """Remove what `install` created, with the rows in it.

    \b
    Examples:
      liveness pgai uninstall --dsn postgresql://owner@db.example/app
      liveness pgai uninstall --dsn service=app --force
    """
    from liveness.doors.pgai import installation

    removed = _run(lambda url: installation.uninstall(url, force=force), dsn)
    if as_json:
        print_json({"removed": list(removed)})
    elif removed:
        click.echo(f"removed {', '.join(f'ai.{name}' for name in removed)}")
    else:
        print_note("Nothing is installed in this database.")


@pgai.command()
@dsn_option
@json_option
@needs_server_parts
def status(*, dsn: str | None, as_json: bool) -> None:
    """Tell what is installed, how many workers there are, and when a server last followed them.

    \b
    Examples:
      liveness pgai status --dsn postgresql://owner@db.example/app
      liveness pgai status --json | jq .kind
    """
    from liveness.doors.pgai import installation

    _print_status(_run(installation.read_status, dsn), as_json)


def _run(work: Callable[[str], Coroutine[Any, Any, ResultT]], dsn: str | None) -> ResultT:
    from liveness.doors.pgai.connection import PgaiError

    try:
        url = load_pgai_dsn(dsn, os.environ)
    except SettingsError as error:
        raise UsageError(str(error)) from error
    try:
        return asyncio.run(work(url))
    except PgaiError as error:
        raise CommandError(str(error)) from error


def _print_status(found: Status, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in asdict(found).items()
            }
        )
        return
    age = found.followed_seconds_ago
    print_fields(
        [
            ("installation", MEANINGS[found.kind]),
            ("missing", ", ".join(found.missing)),
            ("not ours", ", ".join(found.foreign)),
            ("workers", f"{found.workers}, of which {found.recent_workers} have sent a heartbeat recently"),
            ("may call", ", ".join(found.grants)),
            ("followed", "never" if age is None else f"{max(age, 0):.0f}s ago"),
        ]
    )
