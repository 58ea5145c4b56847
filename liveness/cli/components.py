"""`liveness components`: list supervised processes, read their output and history, and give orders to them."""

from __future__ import annotations

import json
import sys
from itertools import islice
from threading import Event as Waiting

import click

from liveness.cli.client import LIST_ALL_NAMESPACES, Client, ServerUnavailable, client_command, limit_option
from liveness.cli.component_orders import (
    pause,
    reset,
    restart,
    resume,
    scale,
    start,
    stop,
)
from liveness.cli.component_output import (
    COLUMNS,
    HISTORY_COLUMNS,
    GroupFinder,
    component_row,
    health_events,
    history_json,
    history_row,
    order_text,
    output_line,
    print_component,
    print_components,
)
from liveness.cli.component_targets import (
    component_option_id,
    find_groups,
    list_components,
    naming_similar,
    similar,
)
from liveness.cli.errors import CommandError
from liveness.cli.output import (
    format_age,
    print_json,
    print_note,
    print_table,
    to_json,
)
from liveness.cli.shared_options import SharedOptionsGroup
from liveness.v1.component_pb2 import Component, ComponentStatus
from liveness.v1.component_service_pb2 import (
    GetComponentLogsRequest,
    GetComponentLogsResponse,
    GetComponentRequest,
)
from liveness.v1.service_pb2 import GetWorkerHistoryRequest

STATUSES = {
    name.removeprefix("COMPONENT_STATUS_").lower(): number
    for name, number in ComponentStatus.items()
    if number
}
LINES_MAX = 1_000
FOLLOW_SECONDS = 1.0
INTERRUPTED = 130
NO_GROUPS = "No supervisor has run in namespace {}; start one: liveness supervise --name discovery -- python worker.py"


@click.group(cls=SharedOptionsGroup)
def components() -> None:
    """List, restart, stop, pause and scale supervised processes.

    A component is one process of a group that `liveness supervise` keeps running. Its id is worker:GROUP:INDEX; GROUP:INDEX
    means the same.

    \b
    Examples:
      liveness components list discovery
      liveness components restart discovery --rolling --reason "new build"
      liveness components pause worker:discovery:0
      liveness components logs discovery:0 --follow
      liveness components history discovery:0
    """


for _command in (restart, stop, start, pause, resume, reset, scale):
    components.add_command(_command)


@components.command("list")
@click.argument("group", default="")
@click.option(
    "--status",
    "statuses",
    type=click.Choice(tuple(STATUSES)),
    multiple=True,
    help="Only components of this status; may be repeated.",
)
@limit_option
@client_command(all_namespaces=LIST_ALL_NAMESPACES)
def list_(client: Client, *, group: str, statuses: tuple[str, ...], limit: int, as_json: bool) -> None:
    """List components, ordered by id, of one GROUP or of all.

    "no supervisor" behind a status means that nobody keeps the component running at the moment.

    \b
    Examples:
      liveness components list
      liveness components list discovery --status crashed --status failed
      liveness components list --json | jq -r '.[] | select(.status == "COMPONENT_STATUS_FAILED") | .component_id'
    """
    if client.all_namespaces:
        _list_all_namespaces(client, group, [STATUSES[status] for status in statuses], limit, as_json=as_json)
        return
    finder = find_groups(client)
    if group and group not in finder.groups and next(list_components(client, group, limit=1), None) is None:
        raise CommandError(
            f"No supervisor ever ran a group {group} in namespace {client.namespace}.{similar(client, group)}"
        )
    found = list_components(client, group, [STATUSES[status] for status in statuses], limit)
    if as_json:
        print_json(
            [
                {**to_json(component), "supervised": finder.is_supervised(component.group)}
                for component in found
            ]
        )
        return
    if not print_components(found, finder):
        if not finder.groups:
            print_note(NO_GROUPS.format(client.namespace))
        elif statuses:
            print_note(f"No component is {' or '.join(statuses)}.")
        else:
            print_note("No component was started yet.")
        client.print_namespace_hint()
    _print_group_notes(finder, group)


def _list_all_namespaces(
    client: Client, group: str, statuses: list[ComponentStatus.ValueType], limit: int, *, as_json: bool
) -> None:
    found: list[tuple[Component, bool]] = []
    for scoped in client.each_namespace():
        if limit and len(found) >= limit:
            print_note(f"These are the first {limit}; --limit 0 shows all.")
            break
        finder = find_groups(scoped)
        left = limit - len(found) if limit else 0
        found += [
            (component, finder.is_supervised(component.group))
            for component in list_components(scoped, group, statuses, left)
        ]
    if as_json:
        print_json([{**to_json(component), "supervised": supervised} for component, supervised in found])
    elif found:
        rows = [
            (component.namespace, *component_row(component, is_supervised=supervised))
            for component, supervised in found
        ]
        print_table(("namespace", *COLUMNS), rows)
    else:
        client.print_nothing("component")


def _print_group_notes(finder: GroupFinder, chosen: str) -> None:
    for group in finder.groups.values():
        if chosen and group.group != chosen:
            continue
        if not group.supervised:
            seen = format_age(group, "last_seen_time")
            print_note(
                f"No supervisor runs group {group.group}"
                + (f"; the last one was seen {seen} on host {group.host_name or 'unknown'}." if seen else ".")
            )
        for order in group.waiting_orders:
            print_note(
                f"Group {group.group}: order {order.number} ({order_text(order)}) waits for the supervisor."
            )


@components.command()
@click.argument("component_id", metavar="ID", callback=component_option_id)
@client_command()
def describe(client: Client, *, component_id: str, as_json: bool) -> None:
    """Show all details of one component, with the last lines of a process that ended.

    \b
    Example:
      liveness components describe worker:discovery:0
    """
    request = GetComponentRequest(namespace=client.namespace, worker_instance_key=component_id)
    with naming_similar(client, component_id):
        component = client.call(client.components.GetComponent, request).component
    if as_json:
        print_json(to_json(component))
        return
    print_component(component, find_groups(client).groups.get(component.group))


@components.command()
@click.argument("component_id", metavar="ID", callback=component_option_id)
@click.option(
    "--lines",
    type=click.IntRange(1, LINES_MAX),
    default=100,
    show_default=True,
    help="How many of the last lines.",
)
@click.option("--follow", "-f", is_flag=True, help="Continue with new lines until Ctrl-C.")
@client_command()
def logs(client: Client, *, component_id: str, lines: int, follow: bool, as_json: bool) -> None:
    """Show what a component wrote to stdout and stderr. Its supervisor is asked for it.

    With --json and --follow, each line of the output is one answer.

    \b
    Examples:
      liveness components logs worker:discovery:0 --lines 20
      liveness components logs discovery:0 -f
    """
    request = GetComponentLogsRequest(
        namespace=client.namespace, worker_instance_key=component_id, lines=lines
    )
    with naming_similar(client, component_id):
        answer = client.call(client.components.GetComponentLogs, request)
    if not follow:
        if as_json:
            print_json(to_json(answer))
        else:
            _print_lines(answer)
            if not answer.lines:
                print_note(f"{component_id} has written nothing, or its supervisor keeps nothing of it.")
        return
    try:
        _follow(client, request, answer, as_json=as_json)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _print_lines(answer: GetComponentLogsResponse) -> None:
    for line in answer.lines:
        click.echo(output_line(line))


def _follow(
    client: Client, request: GetComponentLogsRequest, answer: GetComponentLogsResponse, *, as_json: bool
) -> None:
    pauses = Waiting()
    is_silent = False
    while True:
        if as_json and answer.lines:
            click.echo(json.dumps(to_json(answer)))
        elif not as_json:
            _print_lines(answer)
        request.after = answer.next or request.after
        request.lines = LINES_MAX
        if len(answer.lines) < LINES_MAX:
            pauses.wait(FOLLOW_SECONDS)
        try:
            answer = client.call(client.components.GetComponentLogs, request)
            is_silent = False
        except ServerUnavailable as error:
            # The supervisor or the server may come back, and the output continues where it was.
            if not is_silent:
                print_note(f"{error.message.rstrip('.')}. Trying again.")
            is_silent = True
            answer = GetComponentLogsResponse()


@components.command()
@click.argument("component_id", metavar="ID", callback=component_option_id)
@limit_option
@client_command()
def history(client: Client, *, component_id: str, limit: int, as_json: bool) -> None:
    """Show how a component was over time: each status with its reason, who caused it, and how processes ended.

    Rows without a status are about its lease. The newest row is the last one.

    \b
    Examples:
      liveness components history worker:discovery:0 --limit 20
      liveness components history discovery:0 --json | jq -r '.[] | select(.status == "CRASHED") | .reason'
    """
    events = health_events(
        client.list_all(
            client.liveness.GetWorkerHistory,
            GetWorkerHistoryRequest(
                namespace=client.namespace, worker_instance_key=component_id, newest_first=True
            ),
            lambda response: response.events,
            0,
        )
    )
    with naming_similar(client, component_id):
        newest = list(islice(events, limit) if limit else events)[::-1]
    if as_json:
        print_json([history_json(event) for event in newest])
    elif newest:
        print_table(HISTORY_COLUMNS, map(history_row, newest))
    else:
        print_note(f"No events of component {component_id} in namespace {client.namespace}.")
    if limit and next(events, None) is not None:
        print_note(f"These are the newest {limit}; --limit 0 shows all.")
