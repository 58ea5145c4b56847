"""`liveness incidents`: workers that died together, and their likely common cause."""

from __future__ import annotations

import click

from liveness.cli.client import LIST_ALL_NAMESPACES, Client, Milliseconds, client_command
from liveness.cli.durations import from_ms
from liveness.cli.errors import CommandError
from liveness.cli.output import (
    format_timestamp,
    print_fields,
    print_json,
    print_json_array,
    print_note,
    to_json,
)
from liveness.cli.shared_options import SharedOptionsGroup
from liveness.v1.insight_pb2 import (
    INCIDENT_CAUSE_BUILD,
    INCIDENT_CAUSE_HOST,
    INCIDENT_CAUSE_LABEL,
    INCIDENT_CAUSE_TASK_QUEUE,
    Incident,
    ListIncidentsRequest,
)

COLUMNS = ("incident", "began", "died", "came back", "likely cause", "dead with it", "living with it")


@click.group(cls=SharedOptionsGroup)
def incidents() -> None:
    """Show workers that died together, and what they have in common.

    \b
    Examples:
      liveness incidents list -n orders
      liveness incidents describe 1763590215000 -n orders
    """


@incidents.command("list")
@click.option(
    "--range", "range_ms", type=Milliseconds(), default="1d", show_default=True, help="How far to look back."
)
@client_command(all_namespaces=LIST_ALL_NAMESPACES)
def list_(client: Client, *, range_ms: int, as_json: bool) -> None:
    """List the incidents of a namespace, newest first; at most 100.

    An incident is three or more workers that died within a minute and share a host, build, label or task queue which few of the living
    have, or that were a large part of the namespace.

    \b
    Examples:
      liveness incidents list
      liveness incidents list -A
      liveness incidents list --range 7d --json | jq -r '.[].message'
    """
    found = [
        incident
        for each in client.each_namespace()
        for incident in each.call(
            each.admin.ListIncidents,
            ListIncidentsRequest(namespace=each.namespace, range=from_ms(range_ms)),
        ).incidents
    ]
    found.sort(key=lambda incident: -incident.start_time.ToMilliseconds())
    if as_json:
        print_json_array(found)
    else:
        client.print_items(COLUMNS, _row, found, "incident")


@incidents.command()
@click.argument("incident_id", metavar="INCIDENT")
@client_command()
def describe(client: Client, *, incident_id: str, as_json: bool) -> None:
    """Show one incident with its evidence and its workers.

    \b
    Example:
      liveness incidents describe 1763590215000
    """
    request = ListIncidentsRequest(namespace=client.namespace, incident_id=incident_id)
    found = client.call(client.admin.ListIncidents, request).incidents
    if not found:
        raise CommandError(
            f"There is no incident {incident_id} in namespace {client.namespace}, as far as its history is kept.",
            "INCIDENT_NOT_FOUND",
        )
    incident = found[0]
    if as_json:
        print_json(to_json(incident))
        return
    click.echo(f"{incident.message}\n")
    print_fields(_fields(incident))
    click.echo("\nwho died, in order:")
    for worker in incident.worker_instance_keys:
        click.echo(f"  {worker}")
    if incident.dead > len(incident.worker_instance_keys):
        print_note(f"and {incident.dead - len(incident.worker_instance_keys)} more")


def cause_text(incident: Incident) -> str:
    if incident.cause == INCIDENT_CAUSE_LABEL:
        return f"{incident.label} {incident.value}"
    kinds = {
        INCIDENT_CAUSE_HOST: "host",
        INCIDENT_CAUSE_BUILD: "build",
        INCIDENT_CAUSE_TASK_QUEUE: "task queue",
    }
    kind = kinds.get(incident.cause)
    return f"{kind} {incident.value}" if kind else "widespread"


def _row(incident: Incident) -> tuple[object, ...]:
    return (
        incident.incident_id,
        format_timestamp(incident.start_time),
        incident.dead,
        incident.returned,
        cause_text(incident),
        f"{incident.dead_with} of {incident.dead}",
        f"{incident.living_with} of {incident.living}",
    )


def _fields(incident: Incident) -> list[tuple[str, object]]:
    return [
        ("incident", incident.incident_id),
        ("namespace", incident.namespace),
        ("began", format_timestamp(incident.start_time)),
        ("last death", format_timestamp(incident.end_time)),
        ("likely cause", cause_text(incident)),
        ("dead with it", f"{incident.dead_with} of {incident.dead}"),
        ("living with it", f"{incident.living_with} of {incident.living}"),
        ("by chance", f"at most {incident.chance:.2g}" if incident.chance else ""),
        ("came back", incident.returned),
    ]
