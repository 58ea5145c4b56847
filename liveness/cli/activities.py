"""`liveness activities`: list, schedule, cancel and retry activities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, BinaryIO, TypeVar

import click
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from liveness.cli.activity_output import activity_fields, activity_name, activity_row, attempt_row, state_name
from liveness.cli.client import (
    LIST_ALL_NAMESPACES,
    Client,
    Milliseconds,
    Moment,
    client_command,
    confirm,
    confirm_option,
    limit_option,
)
from liveness.cli.durations import from_ms
from liveness.cli.errors import CommandError, UsageError, escape_control
from liveness.cli.event_text import describe_event
from liveness.cli.output import (
    format_time,
    print_fields,
    print_json,
    print_json_array,
    print_note,
    print_table,
    to_json,
)
from liveness.cli.payloads import activity_to_json, guess_encoding
from liveness.cli.shared_options import SharedOptionsGroup
from liveness.cli.temporal_link import RESCUE_QUEUE, temporal_link
from liveness.v1.activity_pb2 import (
    BULK_ACTION_CANCEL,
    BULK_ACTION_RETRY,
    ActivityFilter,
    ActivityId,
    ActivityState,
    ActivityTimeouts,
    BulkAction,
    BulkUpdateActivitiesRequest,
    BulkUpdateActivitiesResponse,
    CancelActivityRequest,
    DescribeActivityRequest,
    GetActivityHistoryRequest,
    ListActivitiesRequest,
    Priority,
    RetryActivityRequest,
    RetryPolicy,
    ScheduleActivityRequest,
)
from liveness.v1.event_pb2 import Event
from liveness.v1.service_pb2 import DescribeWorkerRequest

STATES = {
    name.removeprefix("ACTIVITY_STATE_").lower().replace("_", "-"): number
    for name, number in ActivityState.items()
    if number
}
EMPTY_ID_PART = "-"
"""Stands for the run, and without a type for the activity, when an activity is named by its ID alone; as in the SDK."""
INPUT_BYTES_MAX = 256 * 1024
INT32_MAX = 2**31 - 1

Response = TypeVar("Response", bound=Message)


@click.group(cls=SharedOptionsGroup)
def activities() -> None:
    """List, schedule, cancel and retry activities.

    Name an activity by WORKFLOW_ID RUN_ID ACTIVITY_ID, as `list` shows them, or by ID and --type, if it was scheduled
    that way with this command or the SDK.

    \b
    Examples:
      liveness activities list --state started --worker worker-7
      liveness activities schedule photo-17 --type resize --task-queue images --input '{"width": 200}'
      liveness activities describe photo-17 --type resize
    """


names_argument = click.argument(
    "names", metavar="{ID | WORKFLOW_ID RUN_ID ACTIVITY_ID}", nargs=-1, required=True
)


def activity_options(command: Callable[..., None]) -> Callable[..., None]:
    option = click.option(
        "--type", "kind", default="", metavar="NAME", help="The type of an activity named by ID alone."
    )
    return names_argument(option(command))


def parse_activity_id(names: tuple[str, ...], kind: str) -> ActivityId:
    if len(names) == 1:
        return ActivityId(workflow_id=names[0], run_id=EMPTY_ID_PART, activity_id=kind or EMPTY_ID_PART)
    if len(names) != 3:
        raise UsageError(
            f"{len(names)} names are given; name an activity by its ID, or by WORKFLOW_ID RUN_ID ACTIVITY_ID"
        )
    workflow_id, run_id, activity = names
    return ActivityId(workflow_id=workflow_id, run_id=run_id, activity_id=activity)


def existing_activity_id(names: tuple[str, ...], kind: str) -> ActivityId:
    """The id of an existing activity. --type is allowed only as a part of the name."""
    if kind and len(names) == 3:
        raise UsageError("--type goes with an ID alone; WORKFLOW_ID RUN_ID ACTIVITY_ID need no type")
    return parse_activity_id(names, kind)


def _call_with_hint(
    client: Client, method: Callable[..., Response], request: Message, id: ActivityId
) -> Response:
    """Make the call. If the activity is not found and was named by ID alone, add a hint about --type."""
    try:
        return client.call(method, request)
    except CommandError as failure:
        if failure.reason != "ACTIVITY_NOT_FOUND" or (id.run_id, id.activity_id) != (
            EMPTY_ID_PART,
            EMPTY_ID_PART,
        ):
            raise
        hint = "add --type if it was scheduled by ID, or name it by WORKFLOW_ID RUN_ID ACTIVITY_ID"
        raise CommandError(f"{failure.message.rstrip('.')}; {hint}.", failure.reason) from failure


@activities.command("list")
@click.option(
    "--state",
    "states",
    type=click.Choice(tuple(STATES)),
    multiple=True,
    help="Only activities in this state; may be repeated.",
)
@click.option("--task-queue", default="", metavar="NAME", help="Only activities of this task queue.")
@click.option("--worker", default="", metavar="KEY", help="Only activities held by this worker.")
@click.option("--type", "kind", default="", metavar="NAME", help="Only activities of this type.")
@click.option("--id-prefix", default="", metavar="TEXT", help="Only those whose workflow id begins with it.")
@limit_option
@client_command(all_namespaces=LIST_ALL_NAMESPACES)
def list_(
    client: Client,
    *,
    states: tuple[str, ...],
    task_queue: str,
    worker: str,
    kind: str,
    id_prefix: str,
    limit: int,
    as_json: bool,
) -> None:
    """List a namespace's activities, ordered by name. An activity must meet all conditions.

    \b
    Examples:
      liveness activities list --state quarantined --state failed
      liveness activities list --worker worker-7
      liveness activities list --state quarantined --limit 0 --json |
        jq -r '.[].id | [.workflow_id, .run_id, .activity_id] | @sh' | xargs -n 3 liveness activities retry
    """
    where = ActivityFilter(
        states=[STATES[state] for state in states],
        task_queue=task_queue,
        worker_instance_key=worker,
        activity_type=kind,
        workflow_id_prefix=id_prefix,
    )
    found = client.list_all(
        client.activities.ListActivities,
        ListActivitiesRequest(namespace=client.namespace, filter=where),
        lambda response: response.activities,
        limit,
    )
    if as_json:
        print_json_array(found)
        return
    columns = (
        "workflow", "run", "activity", "state", "type", "task queue", "attempt", "failures", "worker", "since",
        "last failure",
    )  # fmt: skip
    client.print_items(columns, activity_row, found, "activity")


@activities.command()
@activity_options
@client_command()
def describe(client: Client, *, names: tuple[str, ...], kind: str, as_json: bool) -> None:
    """Show everything known about one activity, with its input and result.

    \b
    Examples:
      liveness activities describe photo-17 --type resize
      liveness activities describe order-1 run-1 charge
    """
    id = existing_activity_id(names, kind)
    request = DescribeActivityRequest(namespace=client.namespace, id=id)
    activity = _call_with_hint(client, client.activities.DescribeActivity, request, id).activity
    if as_json:
        print_json(activity_to_json(activity))
        return
    print_fields(activity_fields(activity))
    if activity.task_queue == RESCUE_QUEUE and (link := _link_to_workflow(client, activity.id)):
        click.echo(f"\nin Temporal:\n  {escape_control(link)}")


def _link_to_workflow(client: Client, id: ActivityId) -> str:
    """Where Temporal's page shows the workflow of a lost attempt, as the workers that held it know. Empty if none knows."""
    request = GetActivityHistoryRequest(namespace=client.namespace, id=id)
    attempts = client.call(client.activities.GetActivityHistory, request).attempts
    for key in dict.fromkeys(attempt.worker_instance_key for attempt in reversed(attempts)):
        described = DescribeWorkerRequest(namespace=client.namespace, worker_instance_key=key)
        try:
            worker = client.call(client.liveness.DescribeWorker, described).worker
        except CommandError as failure:
            if failure.reason != "WORKER_NOT_FOUND":
                raise
            continue
        if link := temporal_link(worker, id):
            return link
    return ""


@activities.command()
@activity_options
@click.option("--traces", is_flag=True, help="Show where each failed attempt failed.")
@client_command()
def history(client: Client, *, names: tuple[str, ...], kind: str, traces: bool, as_json: bool) -> None:
    """Show every attempt of an activity, and who moved it when and why.

    \b
    Examples:
      liveness activities history photo-17 --type resize
      liveness activities history order-1 run-1 charge --traces
    """
    id = existing_activity_id(names, kind)
    request = GetActivityHistoryRequest(namespace=client.namespace, id=id)
    response = _call_with_hint(client, client.activities.GetActivityHistory, request, id)
    if as_json:
        print_json(to_json(response))
        return
    if response.is_cut:
        print_note("There are older events; these are the newest.")
    if response.attempts:
        columns = ("attempt", "worker", "epoch", "started", "took", "outcome", "reason")
        print_table(columns, [attempt_row(attempt) for attempt in response.attempts])
    else:
        print_note(f"No worker has held activity {activity_name(id)} yet.")
    for attempt in response.attempts if traces else ():
        if attempt.stack_trace:
            click.echo(f"\nAttempt {attempt.attempt}:\n{attempt.stack_trace.rstrip()}")
    click.echo()
    print_table(("time", "event"), [_history_row(event) for event in response.events])


def _history_row(event: Event) -> tuple[object, ...]:
    return format_time(event, "time"), str(describe_event(event))


@activities.command()
@names_argument
@click.option(
    "--type", "kind", required=True, metavar="NAME", help="The type, which selects the handler in the worker."
)
@click.option("--task-queue", required=True, metavar="NAME", help="The task queue that workers poll.")
@click.option("--input", "text", metavar="TEXT", help="The input for the handler: JSON, or else a text.")
@click.option(
    "--input-file", type=click.File("rb"), help="Read the input from a file; - is the standard input."
)
@click.option(
    "--input-encoding",
    metavar="NAME",
    help="The input's encoding: json/plain, text/plain, binary/plain, or one of the worker's own.  [default: by its content]",
)
@click.option(
    "--schedule-to-close",
    type=Milliseconds(),
    help="Fail it if it is not finished in this time, over all attempts.",
)
@click.option("--schedule-to-start", type=Milliseconds(), help="Fail it if no worker takes it in this time.")
@click.option(
    "--start-to-close",
    type=Milliseconds(),
    help="Take an attempt from its worker after this time, and retry it.",
)
@click.option(
    "--heartbeat-timeout",
    type=Milliseconds(),
    help="The same after this time without a call of task.progress.",
)
@click.option("--delay", "delay_ms", type=Milliseconds(), help="Make it available only after this time.")
@click.option(
    "--start-at", "start", type=Moment(), help="Make it available at this time: 2026-12-24T18:00:00+01:00."
)
@click.option(
    "--priority",
    type=click.IntRange(1, 5),
    default=3,
    show_default=True,
    help="Lower ones are handed out first.",
)
@click.option(
    "--fairness-key",
    default="",
    metavar="NAME",
    help="Keys of one priority are served by turns, such as tenants.",
)
@click.option(
    "--fairness-weight",
    type=click.FloatRange(0.001, 1000),
    default=1.0,
    help="How many turns the key gets.  [default: 1]",
)
@click.option(
    "--max-attempts",
    type=click.IntRange(0, INT32_MAX),
    default=0,
    show_default=True,
    help="How many attempts may fail or end with their worker's death; 0 is any number.",
)
@click.option(
    "--max-worker-deaths",
    type=click.IntRange(0, INT32_MAX),
    help="Quarantine after this many consecutive worker deaths; 0 is never.  [default: the namespace's]",
)
@click.option(
    "--initial-interval", type=Milliseconds(), help="The wait before the second attempt.  [default: 1s]"
)
@click.option(
    "--max-interval", type=Milliseconds(), help="The longest wait between attempts.  [default: 1m40s]"
)
@click.option(
    "--backoff", type=click.FloatRange(min=1), help="The factor by which each wait grows.  [default: 2]"
)
@client_command()
def schedule(
    client: Client,
    *,
    names: tuple[str, ...],
    kind: str,
    task_queue: str,
    text: str | None,
    input_file: BinaryIO | None,
    input_encoding: str | None,
    delay_ms: int | None,
    start: Timestamp | None,
    priority: int,
    fairness_key: str,
    fairness_weight: float,
    max_attempts: int,
    max_worker_deaths: int | None,
    initial_interval: int | None,
    max_interval: int | None,
    backoff: float | None,
    schedule_to_close: int | None,
    schedule_to_start: int | None,
    start_to_close: int | None,
    heartbeat_timeout: int | None,
    as_json: bool,
) -> None:
    """Schedule an activity. Scheduling the same activity again changes nothing.

    \b
    Examples:
      liveness activities schedule photo-17 --type resize --task-queue images --input '{"width": 200}'
      liveness activities schedule order-1 run-1 charge --type charge --task-queue billing --max-attempts 3
      liveness activities schedule crawl --type crawl --task-queue web --start-to-close 10m --heartbeat-timeout 30s
      liveness activities schedule report --type report --task-queue night --delay 8h --input-file query.sql
    """
    id = parse_activity_id(names, kind)
    content = read_input(text, input_file)
    request = ScheduleActivityRequest(
        namespace=client.namespace,
        id=id,
        activity_type=kind,
        task_queue=task_queue,
        input=content or b"",
        input_encoding=guess_encoding(content) if input_encoding is None else input_encoding,
        retry_policy=RetryPolicy(
            initial_interval=None if initial_interval is None else from_ms(initial_interval),
            backoff_coefficient=backoff or 0,
            maximum_interval=None if max_interval is None else from_ms(max_interval),
            maximum_attempts=max_attempts,
            maximum_worker_deaths=max_worker_deaths,
        ),
        start_delay=None if delay_ms is None else from_ms(delay_ms),
        timeouts=ActivityTimeouts(
            schedule_to_close_timeout=_optional(schedule_to_close),
            schedule_to_start_timeout=_optional(schedule_to_start),
            start_to_close_timeout=_optional(start_to_close),
            heartbeat_timeout=_optional(heartbeat_timeout),
        ),
        start_time=start,
        priority=Priority(priority_key=priority, fairness_key=fairness_key, fairness_weight=fairness_weight),
    )
    response = client.call(client.activities.ScheduleActivity, request)
    if as_json:
        print_json(to_json(response))
    elif response.created:
        print_note(f"Activity {activity_name(id)} is scheduled and {state_name(response.state)}.")
    else:
        print_note(f"Activity {activity_name(id)} was scheduled before and is {state_name(response.state)}; "
             "nothing was changed.")  # fmt: skip


def _optional(ms: int | None) -> Duration | None:
    return None if ms is None else from_ms(ms)


def read_input(text: str | None, file: BinaryIO | None) -> bytes | None:
    if file is None:
        return None if text is None else text.encode()
    if text is not None:
        raise UsageError("the input is given by --input or by --input-file, not by both")
    # Read no more than the limit: the file may be huge.
    content = file.read(INPUT_BYTES_MAX + 1)
    if len(content) > INPUT_BYTES_MAX:
        raise UsageError(
            f"the input in {file.name} is longer than {INPUT_BYTES_MAX} bytes; store the data elsewhere and pass its location"
        )
    return content


@activities.command()
@activity_options
@click.option("--reason", default="", metavar="TEXT", help="The reason; shown with the activity.")
@confirm_option
@client_command()
def cancel(
    client: Client, *, names: tuple[str, ...], kind: str, reason: str, yes: bool, as_json: bool
) -> None:
    """Cancel an activity for good. A worker that holds it is told to stop.

    \b
    Example:
      liveness activities cancel photo-17 --type resize --reason "photo was deleted"
    """
    id = existing_activity_id(names, kind)
    if not yes:
        asked = DescribeActivityRequest(namespace=client.namespace, id=id)
        activity = _call_with_hint(client, client.activities.DescribeActivity, asked, id).activity
        holder = f", held by worker {activity.worker_instance_key}" if activity.worker_instance_key else ""
        confirm(
            f"Cancel activity {activity_name(id)} of namespace {client.namespace} for good? "
            f"It is {state_name(activity.state)}{holder}."
        )
    request = CancelActivityRequest(namespace=client.namespace, id=id, reason=reason)
    response = _call_with_hint(client, client.activities.CancelActivity, request, id)
    if as_json:
        print_json(to_json(response))
        return
    holder_text = "the worker that held it is told to stop" if response.was_held else "no worker held it"
    print_note(f"Activity {activity_name(id)} is cancelled; {holder_text}.")


@activities.command()
@activity_options
@click.option("--reason", default="", metavar="TEXT", help="The reason; shown in the activity's history.")
@client_command()
def retry(client: Client, *, names: tuple[str, ...], kind: str, reason: str, as_json: bool) -> None:
    """Make a quarantined or failed activity available again, with its failures reset.

    \b
    Example:
      liveness activities retry photo-17 --type resize
    """
    id = existing_activity_id(names, kind)
    request = RetryActivityRequest(namespace=client.namespace, id=id, reason=reason)
    response = _call_with_hint(client, client.activities.RetryActivity, request, id)
    if as_json:
        print_json(to_json(response))
    else:
        print_note(f"Activity {activity_name(id)} starts afresh and is {state_name(response.state)}.")


def bulk_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(
        (
            click.option(
                "--state",
                "states",
                type=click.Choice(tuple(STATES)),
                multiple=True,
                help="Only activities in this state; may be repeated.",
            ),
            click.option(
                "--task-queue", default="", metavar="NAME", help="Only activities of this task queue."
            ),
            click.option("--type", "kind", default="", metavar="NAME", help="Only activities of this type."),
            click.option(
                "--id-prefix", default="", metavar="TEXT", help="Only those whose workflow id begins with it."
            ),
            click.option(
                "--reason", default="", metavar="TEXT", help="The reason; shown with each activity."
            ),
            click.option("--preview", is_flag=True, help="Change nothing; show what would be changed."),
            confirm_option,
        )
    ):
        command = option(command)
    return command


@activities.command("bulk-retry")
@bulk_options
@client_command()
def bulk_retry(client: Client, *, as_json: bool, **options: Any) -> None:
    """Give all quarantined and failed activities that meet the conditions a fresh start.

    \b
    Examples:
      liveness activities bulk-retry --task-queue billing --preview
      liveness activities bulk-retry --state quarantined --type resize --reason "fixed in v7" --yes
    """
    _bulk_update(client, BULK_ACTION_RETRY, "Retry", "retried", as_json=as_json, **options)


@activities.command("bulk-cancel")
@bulk_options
@client_command()
def bulk_cancel(client: Client, *, as_json: bool, **options: Any) -> None:
    """Cancel all unfinished activities that meet the conditions, for good.

    \b
    Examples:
      liveness activities bulk-cancel --type crawl --id-prefix site-17- --preview
      liveness activities bulk-cancel --state waiting --task-queue night --reason "report is gone"
    """
    _bulk_update(client, BULK_ACTION_CANCEL, "Cancel", "cancelled", as_json=as_json, **options)


def _bulk_update(
    client: Client,
    action: BulkAction.ValueType,
    verb: str,
    done: str,
    *,
    states: tuple[str, ...],
    task_queue: str,
    kind: str,
    id_prefix: str,
    reason: str,
    preview: bool,
    yes: bool,
    as_json: bool,
) -> None:
    request = BulkUpdateActivitiesRequest(
        namespace=client.namespace,
        filter=ActivityFilter(
            states=[STATES[state] for state in states],
            task_queue=task_queue,
            activity_type=kind,
            workflow_id_prefix=id_prefix,
        ),
        action=action,
        reason=reason,
    )
    if preview or not yes:
        found = _bulk_call(client, request, preview=True)
        if preview and as_json:
            print_json(to_json(found))
            return
        for example in found.examples:
            click.echo(
                f"{activity_name(example.id)}  {state_name(example.state)}  {example.last_failure}".rstrip()
            )
        if found.matched > len(found.examples):
            click.echo(f"and {found.matched - len(found.examples)} more")
        if preview or not found.matched:
            print_note(f"{found.matched} activities would be {done}.")
            return
        confirm(f"{verb} these {found.matched} activities of namespace {client.namespace}?")
    changed = _bulk_call(client, request, preview=False)
    if as_json:
        print_json(to_json(changed))
        return
    refused = (
        f"; {changed.refused} were refused, the first: {changed.first_refusal}" if changed.refused else ""
    )
    print_note(f"{changed.changed} activities are {done}{refused}.")


def _bulk_call(
    client: Client, request: BulkUpdateActivitiesRequest, *, preview: bool
) -> BulkUpdateActivitiesResponse:
    """Repeat the call until it has looked at all activities."""
    total = BulkUpdateActivitiesResponse()
    request.preview, request.page_token = preview, ""
    while True:
        answer = client.call(client.activities.BulkUpdateActivities, request)
        for field in ("matched", "changed", "refused"):
            setattr(total, field, getattr(total, field) + getattr(answer, field))
        total.first_refusal = total.first_refusal or answer.first_refusal
        total.examples.extend(answer.examples[: 10 - len(total.examples)])
        if not answer.next_page_token:
            return total
        request.page_token = answer.next_page_token
