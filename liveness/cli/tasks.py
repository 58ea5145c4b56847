"""`liveness tasks`: list, retry and discard queued tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import click

from liveness.cli.client import (
    LIST_ALL_NAMESPACES,
    Client,
    client_command,
    confirm,
    confirm_option,
    limit_option,
)
from liveness.cli.errors import CommandError, escape_control
from liveness.cli.output import enum_name, format_age, print_json_array, print_note, print_table
from liveness.cli.shared_options import SharedOptionsGroup
from liveness.v1.admin_pb2 import (
    TASK_STATE_DEAD_LETTERED,
    TASK_STATE_DISCARDED,
    TASK_STATE_DONE,
    TASK_STATE_PENDING,
    TASK_STATE_RETRYING,
    DiscardTaskRequest,
    ListTasksRequest,
    RetryTaskRequest,
    Task,
    TaskState,
)

STATES = {
    "pending": TASK_STATE_PENDING,
    "retrying": TASK_STATE_RETRYING,
    "dead-lettered": TASK_STATE_DEAD_LETTERED,
    "done": TASK_STATE_DONE,
    "discarded": TASK_STATE_DISCARDED,
}

# The range of the database's ids.
TASK_ID = click.IntRange(1, 2**63 - 1)


@click.group(cls=SharedOptionsGroup)
def tasks() -> None:
    """List, retry and discard queued tasks.

    \b
    Examples:
      liveness tasks list --all-namespaces --state dead-lettered
      liveness tasks retry 17 18
    """


@tasks.command("list")
@click.option(
    "--state",
    "states",
    type=click.Choice(tuple(STATES)),
    multiple=True,
    help="Only tasks in this state; may be repeated.  [default: pending, retrying, dead-lettered]",
)
@limit_option
@client_command(all_namespaces=LIST_ALL_NAMESPACES)
def list_(client: Client, *, states: tuple[str, ...], limit: int, as_json: bool) -> None:
    """List tasks, oldest first.

    \b
    Examples:
      liveness tasks list
      liveness tasks list --all-namespaces --state dead-lettered
      liveness tasks list --state dead-lettered --json --limit 0 | jq -r '.[].task_id'
    """
    request = ListTasksRequest(
        # The server lists those of all namespaces together, oldest first.
        namespace="" if client.all_namespaces else client.namespace,
        states=[STATES[state] for state in states],
    )
    found = client.in_one_listing().list_all(
        client.admin.ListTasks, request, lambda response: response.tasks, limit
    )
    if as_json:
        print_json_array(found)
    elif not _print_tasks(found):
        client.print_nothing("task")


@tasks.command()
@click.argument("ids", metavar="ID...", type=TASK_ID, nargs=-1, required=True)
@client_command(namespace=False)
def retry(client: Client, *, ids: tuple[int, ...], as_json: bool) -> None:
    """Make retrying or dead-lettered tasks due now.

    \b
    Example:
      liveness tasks retry 17 18
    """
    _apply_to_each(
        ids,
        lambda id: client.call(client.admin.RetryTask, RetryTaskRequest(task_id=id)).task,
        as_json=as_json,
    )


@tasks.command()
@click.argument("ids", metavar="ID...", type=TASK_ID, nargs=-1, required=True)
@confirm_option
@client_command(namespace=False)
def discard(client: Client, *, ids: tuple[int, ...], yes: bool, as_json: bool) -> None:
    """Discard tasks for good. The server will never run them.

    \b
    Example:
      liveness tasks discard 17 --yes
    """
    if not yes:
        confirm(f"Discard {len(ids)} task{'s' if len(ids) > 1 else ''} for good?")
    _apply_to_each(
        ids,
        lambda id: client.call(client.admin.DiscardTask, DiscardTaskRequest(task_id=id)).task,
        as_json=as_json,
    )


def _apply_to_each(ids: Iterable[int], change: Callable[[int], Task], *, as_json: bool) -> None:
    """Change each task by its own call, so that a refused one does not stop the others."""
    failures: list[str] = []

    def changed_tasks() -> Iterator[Task]:
        for id in dict.fromkeys(ids):
            try:
                yield change(id)
            except CommandError as failure:
                failures.append(f"task {id}: {failure.message}")

    if as_json:
        print_json_array(changed_tasks())
    else:
        _print_tasks(changed_tasks())
    for sentence in failures[:-1]:
        print_note(f"error: {sentence}")
    if failures:
        raise CommandError(failures[-1])


def _print_tasks(found: Iterable[Task]) -> bool:
    """Returns whether there were any."""
    rows = [_row(task) for task in found]
    if rows:
        print_table(
            ("id", "state", "type", "namespace", "workflow / run / activity", "attempt", "taken from", "tries",
             "created", "last error"),
            rows,
        )  # fmt: skip
    return bool(rows)


def _row(task: Task) -> tuple[object, ...]:
    activity = task.activity
    return (
        task.task_id,
        enum_name(TaskState, task.state),
        task.type,
        task.namespace,
        " / ".join(
            escape_control(part) for part in (activity.workflow_id, activity.run_id, activity.activity_id)
        ),
        activity.attempt,
        f"{task.worker_instance_key} (epoch {task.lease_epoch})",
        task.attempts,
        format_age(task, "create_time"),
        task.last_error,
    )
