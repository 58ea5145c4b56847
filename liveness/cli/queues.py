"""`liveness queues`: what waits in the task queues, who polls them, and how fast they move."""

from __future__ import annotations

import click

from liveness.cli.client import LIST_ALL_NAMESPACES, Client, client_command
from liveness.cli.durations import humanize_ms, to_ms
from liveness.cli.output import print_json, print_json_array, print_table, to_json
from liveness.cli.shared_options import SharedOptionsGroup
from liveness.v1.activity_pb2 import ListTaskQueuesRequest, TaskQueue

COLUMNS = (
    "task queue", "available", "oldest", "waiting", "held", "pollers", "added/min", "started/min", "completed/min", "failed/min",
)  # fmt: skip


@click.group(cls=SharedOptionsGroup)
def queues() -> None:
    """Show what waits in task queues, who polls them, and how fast they move.

    \b
    Example:
      liveness queues list
    """


@queues.command("list")
@click.option(
    "--sort",
    type=click.Choice(("name", "available", "oldest")),
    default="name",
    show_default=True,
    help="The order; the largest first, except for names.",
)
@client_command(all_namespaces=LIST_ALL_NAMESPACES)
def list_(client: Client, *, sort: str, as_json: bool) -> None:
    """List the task queues of a namespace that have activities, polls or anything in the last minute.

    \b
    Examples:
      liveness queues list
      liveness queues list --sort oldest
      liveness queues list -A
      liveness queues list --json | jq '.[] | select(.available > 0 and .polls == 0) | .task_queue'
    """
    found = [
        (each.namespace, queue)
        for each in client.each_namespace()
        for queue in each.call(
            each.activities.ListTaskQueues, ListTaskQueuesRequest(namespace=each.namespace)
        ).task_queues
    ]
    if sort == "available":
        found.sort(key=lambda item: -item[1].available)
    elif sort == "oldest":
        found.sort(key=lambda item: -item[1].oldest.ToMilliseconds())
    if as_json and client.all_namespaces:
        print_json([{"namespace": namespace, **to_json(queue)} for namespace, queue in found])
    elif as_json:
        print_json_array(queue for _, queue in found)
    elif found and client.all_namespaces:
        print_table(("namespace", *COLUMNS), [(namespace, *_row(queue)) for namespace, queue in found])
    elif found:
        print_table(COLUMNS, [_row(queue) for _, queue in found])
    else:
        client.print_nothing("task queue with activities or polls")


def _row(queue: TaskQueue) -> tuple[object, ...]:
    return (
        queue.task_queue,
        queue.available,
        humanize_ms(to_ms(queue.oldest)) if queue.HasField("oldest") else "",
        queue.waiting,
        queue.held,
        queue.pollers,
        queue.added_per_minute,
        queue.started_per_minute,
        queue.completed_per_minute,
        queue.failed_per_minute,
    )
