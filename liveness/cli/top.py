"""`liveness top`: a live view of the fleet."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

import click
from rich.console import Console

from liveness.cli.client import Client, Timeout, client_command
from liveness.cli.fleet.reader import read
from liveness.cli.fleet.screen import Screen, first_query
from liveness.cli.fleet.view import FleetView, Frame
from liveness.cli.fleet.view_state import Viewport, ViewState
from liveness.cli.fleet.worker_table import columns
from liveness.cli.output import print_json, print_note, print_table, to_json
from liveness.clock import SystemClock
from liveness.v1.fleet_pb2 import GetFleetRequest

PIPED_WORKERS = 1_000
PIPED_WIDTH = 126
"""The width of the figures in a pipe; alerts and workers are never cut."""


@click.command()
@click.option(
    "--interval", type=Timeout(), default="2s", show_default=True, help="The time between two reads."
)
@click.option("--once", is_flag=True, help="Print one frame and exit, as without a terminal.")
@client_command(all_namespaces="Show all namespaces together.")
def top(client: Client, *, interval: float, once: bool, as_json: bool) -> None:
    """Show the fleet in a live view: workers, rates and alerts.

    Keys: q quits, / filters, s or the arrows sort, p pauses, ? shows the rest. The command reads only the workers that it
    shows. It sorts the first 5,000; use a filter to find others.

    \b
    Examples:
      liveness top
      liveness top --all-namespaces --interval 5s
      liveness top --once | head -20
      liveness top --json | jq '.alerts[].message'
    """
    namespace = "" if client.all_namespaces else client.namespace
    if as_json:
        print_json(to_json(client.call(client.admin.GetFleet, GetFleetRequest(namespace=namespace))))
        return
    console = Console(highlight=False)
    clock = SystemClock()
    on_terminal = console.is_terminal and not console.is_dumb_terminal
    query = first_query(namespace, console.height)
    if not on_terminal:
        query = replace(query, workers=PIPED_WORKERS)
    snapshot = read(client, query, clock)
    frame = Frame(snapshot=snapshot, view_state=ViewState(), now_ms=snapshot.at_ms, namespace=namespace)
    if not on_terminal:
        _print(frame)
    elif once or not sys.stdin.isatty():
        console.print(FleetView(frame, show_keys=False), height=console.height - 1)
    else:

        async def run_screen() -> int:
            return await Screen(console, client, clock, interval, query, snapshot).run()

        sys.exit(asyncio.run(run_screen()))


def _print(frame: Frame) -> None:
    """Print a frame for a pipe or a file: without colours, and nothing cut."""
    view = FleetView(frame, show_keys=False)
    for line in (*view.head(PIPED_WIDTH, Viewport(0, 0)), *view.stats(PIPED_WIDTH)):
        click.echo(line.plain.rstrip())
    for banner in view.banners():
        click.echo(banner)
    found = frame.workers()
    shown = columns(PIPED_WIDTH, with_namespace=not frame.namespace)
    click.echo()
    print_table(
        [column.title for column in shown],
        ([column.cell(worker, frame.server_ms).plain for column in shown] for worker in found),
    )
    total = frame.snapshot.total
    if total is None or total > len(found):
        print_note(
            f"These are the first {len(found):,} of {'many' if total is None else f'{total:,}'} workers."
        )
