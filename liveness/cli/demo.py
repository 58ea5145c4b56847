"""`liveness demo`: watch workers die and their work move to others, in half a minute."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import click

from liveness.cli.errors import CommandError
from liveness.cli.output import print_json
from liveness.cli.server_parts import needs_server_parts
from liveness.clock import SystemClock

if TYPE_CHECKING:
    from rich.console import Console

    from liveness.demo.demo_run import DemoResult, Observer
    from liveness.demo.timeline import TimelineEntry
    from liveness.demo.view import Frame

SNAPSHOT_WIDTH = 128
SNAPSHOT_HEIGHT = 40


@click.command()
@click.option(
    "--workers",
    type=click.IntRange(2, 16),
    metavar="N",
    help="The number of workers at the start.  [default: 4]",
)
@click.option(
    "--activities", type=click.IntRange(8, 500), metavar="N", help="The number of activities.  [default: 72]"
)
@click.option(
    "--seed",
    type=int,
    default=7,
    show_default=True,
    metavar="N",
    help="Decides which workers are killed and frozen.",
)
@click.option("--fast", is_flag=True, help="A small demo that takes a few seconds.")
@click.option("--keep", is_flag=True, help="Keep the folder with the database, notes and logs.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the ledger as JSON; the timeline goes to stderr."
)
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, path_type=Path),
    hidden=True,
    help="Save a picture of the view when a zombie is refused.",
)
@needs_server_parts
def demo(
    *,
    workers: int | None,
    activities: int | None,
    seed: int,
    fast: bool,
    keep: bool,
    as_json: bool,
    picture: Path | None,
) -> None:
    """Watch workers die and their work move to others.

    The demo starts a server and workers, as real processes on a free port and in a temporary folder. The workers hash
    files; the demo kills some of them with `kill -9`, freezes one until its lease has ended, and shows how the server
    reacts. At the end it compares the workers' own notes with the server's records: exit code 0 means that everything
    was completed, nothing was lost and nothing was completed twice.

    \b
    Examples:
      liveness demo
      liveness demo --workers 8 --activities 200 --seed 1
      liveness demo --fast --json
    """
    # gRPC reads these when it is imported. Its fork handlers can crash a child process before that starts its program,
    # and its messages about connections that the demo cuts itself are noise.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    # Imported late: help must be shown at once.
    from rich.console import Console

    from liveness.demo import plan as plans
    from liveness.demo.demo_run import Interrupted, run_demo
    from liveness.demo.view import render_ledger

    plan = (plans.fast if fast else plans.full)(workers=workers, activities=activities, seed=seed)
    console = Console(stderr=as_json, highlight=False)
    try:
        with live_view(console, picture) as observer:
            outcome = asyncio.run(run_demo(plan, observer, dict(os.environ), SystemClock(), keep=keep))
    except plans.DemoFailed as error:
        raise CommandError(str(error)) from error
    except Interrupted as error:
        console.print(f"Stopped by {error.by.name}; all processes have ended.")
        sys.exit(128 + error.by)
    if as_json:
        print_json(outcome.as_json())
    else:
        console.print(render_ledger(outcome.ledger, summary(outcome)))
    if outcome.folder is not None:
        console.print(f"Database, notes and logs are in {outcome.folder}")
    sys.exit(0 if outcome.ledger.is_clean else 1)


@contextmanager
def live_view(console: Console, picture: Path | None) -> Iterator[Observer]:
    """Draw a live view in a terminal; otherwise print one line for each timeline entry."""
    from rich.live import Live

    from liveness.demo.demo_run import Observer
    from liveness.demo.view import DemoView

    snapshot_saver = SnapshotSaver(picture)
    if not console.is_terminal:

        def on_frame(frame: Frame) -> None:
            snapshot_saver.save_if_refused(frame)

        def on_entry(line: TimelineEntry) -> None:
            # Not through rich, which would wrap the line; and unbuffered, for readers of a pipe.
            click.echo(f"{line.time:>6}  {line.text}", file=console.file)

        yield Observer(on_entry=on_entry, on_frame=on_frame)
        return

    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:

        def show(frame: Frame) -> None:
            snapshot_saver.save_if_refused(frame)
            live.update(DemoView(frame), refresh=True)

        yield Observer(on_entry=lambda line: None, on_frame=show)


class SnapshotSaver:
    """Saves one frame as an image: the first after a zombie was refused."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def save_if_refused(self, frame: Frame) -> None:
        from rich.console import Console

        from liveness.demo.timeline import EntryKind
        from liveness.demo.view import DemoView

        if self._path is None or all(line.kind is not EntryKind.REFUSED for line in frame.timeline):
            return
        console = Console(
            file=StringIO(), record=True, width=SNAPSHOT_WIDTH, height=SNAPSHOT_HEIGHT, force_terminal=True
        )
        console.print(DemoView(frame))
        console.save_svg(str(self._path), title="liveness demo")
        self._path = None


def summary(outcome: DemoResult) -> str:
    lease_ends = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in outcome.lapse_seconds.items())
    return (
        f"{outcome.workers} workers in {outcome.seconds:.0f} s: {outcome.killed} killed, {outcome.frozen} frozen. "
        f"{outcome.moved} attempts moved.\n"
        f"Time from the fault to the end of the lease: {lease_ends}.\n"
        "The figures compare the notes of each worker process, in a file of its own,\n"
        "with the server's records, read through its API."
    )
