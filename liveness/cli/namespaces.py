"""`liveness namespaces`: list the namespaces that have workers or work."""

from __future__ import annotations

import click

from liveness.cli.client import Client, client_command
from liveness.cli.durations import format_ms, to_ms
from liveness.cli.namespace_names import namespace_fleets
from liveness.cli.output import print_json_array, print_note, print_table
from liveness.cli.shared_options import SharedOptionsGroup
from liveness.v1.fleet_pb2 import NamespaceFleet

COLUMNS = (
    "namespace",
    "active",
    "died",
    "ended",
    "cleaned up",
    "deaths so far",
    "work waits",
    "for",
    "quarantined",
    "dead letters",
    "orders",
)


@click.group(cls=SharedOptionsGroup)
def namespaces() -> None:
    """List the namespaces that have workers or work."""


@namespaces.command("list")
@client_command(namespace=False)
def list_(client: Client, *, as_json: bool) -> None:
    """List the namespaces that have workers or work, with their workers by state; at most 1,000.

    A namespace needs no creation: it is there with its first worker or activity. Died are INACTIVE workers whose lease or process
    ended; ended are those that said goodbye, were drained or were forced out.

    \b
    Examples:
      liveness namespaces list
      liveness namespaces list --json | jq -r '.[].namespace'
    """
    found = namespace_fleets(client)
    if as_json:
        print_json_array(found)
    elif found:
        print_table(COLUMNS, map(_row, found))
    else:
        print_note("No namespace has workers or work yet.")


def _row(fleet: NamespaceFleet) -> tuple[object, ...]:
    waits = [
        to_ms(getattr(fleet, name)) for name in ("oldest_polled", "oldest_unpolled") if fleet.HasField(name)
    ]
    return (
        fleet.namespace,
        fleet.active,
        fleet.dead,
        fleet.inactive - fleet.dead,
        fleet.cleaned_up,
        fleet.deaths,
        fleet.available_activities,
        format_ms(max(waits) // 1_000 * 1_000) if waits else "",
        fleet.quarantined_activities,
        fleet.dead_lettered_tasks,
        "paused" if fleet.paused else "",
    )
