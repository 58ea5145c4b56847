"""`liveness schedules`: activities that are scheduled again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, BinaryIO
from uuid import uuid4

import click

from liveness.cli.activities import read_input
from liveness.cli.activity_output import activity_name
from liveness.cli.client import (
    LIST_ALL_NAMESPACES,
    Client,
    Milliseconds,
    client_command,
    confirm,
    confirm_option,
    limit_option,
)
from liveness.cli.durations import from_ms, humanize_ms, to_ms
from liveness.cli.errors import UsageError
from liveness.cli.output import (
    enum_name,
    format_age,
    format_time,
    format_time_left,
    format_timestamp,
    payload_text,
    print_fields,
    print_json,
    print_json_array,
    print_note,
    to_json,
)
from liveness.cli.payloads import guess_encoding
from liveness.cli.shared_options import SharedOptionsGroup
from liveness.v1.activity_pb2 import ActivityTimeouts, Priority, RetryPolicy
from liveness.v1.schedule_service_pb2 import (
    CreateScheduleRequest,
    DeleteScheduleRequest,
    GetScheduleRequest,
    ListSchedulesRequest,
    MissedPolicy,
    OverlapPolicy,
    PauseScheduleRequest,
    ResumeScheduleRequest,
    Schedule,
    ScheduledActivity,
    ScheduleFiring,
    ScheduleSpec,
    TriggerScheduleRequest,
    UpdateScheduleRequest,
)

INT32_MAX = 2**31 - 1


@click.group(cls=SharedOptionsGroup)
def schedules() -> None:
    """Schedule activities again and again, by a cron expression or at an interval.

    \b
    Examples:
      liveness schedules create nightly --cron "30 2 * * *" --time-zone Europe/Berlin --type report --task-queue night
      liveness schedules create poll --every 30s --type fetch --task-queue web --overlap skip
      liveness schedules list
      liveness schedules pause nightly --reason "the warehouse moves"
    """


def spec_options(command: Callable[..., None]) -> Callable[..., None]:
    options = [
        click.option(
            "--cron",
            default="",
            metavar="EXPRESSION",
            help='Minute, hour, day of the month, month, day of the week: "30 2 * * mon-fri"; or @daily and the like.',
        ),
        click.option("--time-zone", default="", metavar="NAME", help="Of --cron.  [default: UTC]"),
        click.option("--every", "every_ms", type=Milliseconds(), help="An interval instead of --cron."),
        click.option("--offset", "offset_ms", type=Milliseconds(), help="Moves the ticks of --every."),
        click.option(
            "--missed",
            type=click.Choice(("skip", "once", "all")),
            default="once",
            show_default=True,
            help="What happens to ticks that nobody fired in time: dropped, the last fires for all, or each fires.",
        ),
        click.option(
            "--overlap",
            type=click.Choice(("allow", "skip")),
            default="allow",
            show_default=True,
            help="What happens to a tick while the activity before is not finished.",
        ),
        click.option(
            "--start-window",
            "window_ms",
            type=Milliseconds(),
            help="A tick that is later than this was missed.  [default: 1m]",
        ),
        click.option("--note", default="", metavar="TEXT", help="For people."),
        click.option("--type", "kind", required=True, metavar="NAME", help="The type of its activities."),
        click.option("--task-queue", required=True, metavar="NAME", help="The task queue of its activities."),
        click.option("--input", "text", metavar="TEXT", help="Their input: JSON, or else a text."),
        click.option(
            "--input-file", type=click.File("rb"), help="Read the input from a file; - is the standard input."
        ),
        click.option(
            "--input-encoding", metavar="NAME", help="The input's encoding.  [default: by its content]"
        ),
        click.option(
            "--max-attempts",
            type=click.IntRange(0, INT32_MAX),
            default=0,
            show_default=True,
            help="How many attempts may fail or end with their worker's death; 0 is any number.",
        ),
        click.option("--schedule-to-close", type=Milliseconds(), help="As in `activities schedule`."),
        click.option("--schedule-to-start", type=Milliseconds(), help="The same."),
        click.option("--start-to-close", type=Milliseconds(), help="The same."),
        click.option("--heartbeat-timeout", type=Milliseconds(), help="The same."),
        click.option(
            "--priority",
            type=click.IntRange(1, 5),
            default=3,
            show_default=True,
            help="Lower ones are handed out first.",
        ),
        click.option("--fairness-key", default="", metavar="NAME", help="Keys are served by turns."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _spec(
    *,
    cron: str,
    time_zone: str,
    every_ms: int | None,
    offset_ms: int | None,
    missed: str,
    overlap: str,
    window_ms: int | None,
    note: str,
    kind: str,
    task_queue: str,
    text: str | None,
    input_file: BinaryIO | None,
    input_encoding: str | None,
    max_attempts: int,
    schedule_to_close: int | None,
    schedule_to_start: int | None,
    start_to_close: int | None,
    heartbeat_timeout: int | None,
    priority: int,
    fairness_key: str,
) -> ScheduleSpec:
    if bool(cron) == (every_ms is not None):
        raise UsageError("say when it fires by --cron or by --every, and not by both")
    content = read_input(text, input_file)
    given = {
        "schedule_to_close_timeout": schedule_to_close,
        "schedule_to_start_timeout": schedule_to_start,
        "start_to_close_timeout": start_to_close,
        "heartbeat_timeout": heartbeat_timeout,
    }
    return ScheduleSpec(
        activity=ScheduledActivity(
            activity_type=kind,
            task_queue=task_queue,
            input=content or b"",
            input_encoding=guess_encoding(content) if input_encoding is None else input_encoding,
            retry_policy=RetryPolicy(maximum_attempts=max_attempts),
            timeouts=ActivityTimeouts(**{name: from_ms(ms) for name, ms in given.items() if ms is not None}),
            priority=Priority(priority_key=priority, fairness_key=fairness_key),
        ),
        cron=cron,
        time_zone=time_zone,
        every=None if every_ms is None else from_ms(every_ms),
        offset=None if offset_ms is None else from_ms(offset_ms),
        missed=MissedPolicy.Value(f"MISSED_POLICY_{missed.upper()}"),
        overlap=OverlapPolicy.Value(f"OVERLAP_POLICY_{overlap.upper()}"),
        start_window=None if window_ms is None else from_ms(window_ms),
        note=note,
    )


@schedules.command()
@click.argument("name")
@spec_options
@client_command()
def create(client: Client, *, name: str, as_json: bool, **options: Any) -> None:
    """Create a schedule. The same schedule again changes nothing.

    \b
    Examples:
      liveness schedules create nightly --cron "30 2 * * *" --time-zone Europe/Berlin --type report --task-queue night
      liveness schedules create poll --every 30s --type fetch --task-queue web --input '{"feed": 7}'
    """
    request = CreateScheduleRequest(namespace=client.namespace, schedule_id=name, spec=_spec(**options))
    response = client.call(client.schedules.CreateSchedule, request)
    if as_json:
        print_json(to_json(response))
    elif response.created:
        print_note(f"Schedule {name} is created; {_next_sentence(response.schedule)}.")
    else:
        print_note(f"Schedule {name} was created before; nothing was changed.")


@schedules.command()
@click.argument("name")
@spec_options
@client_command()
def update(client: Client, *, name: str, as_json: bool, **options: Any) -> None:
    """Replace all that a schedule says. It continues with the first tick after now.

    \b
    Example:
      liveness schedules update nightly --cron "0 4 * * *" --time-zone Europe/Berlin --type report --task-queue night
    """
    request = UpdateScheduleRequest(namespace=client.namespace, schedule_id=name, spec=_spec(**options))
    response = client.call(client.schedules.UpdateSchedule, request)
    if as_json:
        print_json(to_json(response))
    else:
        print_note(f"Schedule {name} is updated; {_next_sentence(response.schedule)}.")


def _next_sentence(schedule: Schedule) -> str:
    if schedule.paused:
        return "it is paused"
    if not schedule.HasField("next_time"):
        return "it never fires"
    return f"it fires next at {format_time(schedule, 'next_time')}"


@schedules.command("list")
@click.argument("prefix", default="")
@limit_option
@client_command(all_namespaces=LIST_ALL_NAMESPACES)
def list_(client: Client, *, prefix: str, limit: int, as_json: bool) -> None:
    """List schedules, ordered by name: all, or those that begin with PREFIX.

    \b
    Examples:
      liveness schedules list
      liveness schedules list --json | jq -r '.[] | select(.paused) | .schedule_id'
    """
    found = client.list_all(
        client.schedules.ListSchedules,
        ListSchedulesRequest(namespace=client.namespace, prefix=prefix),
        lambda response: response.schedules,
        limit,
    )
    if as_json:
        print_json_array(found)
        return
    columns = ("schedule", "when", "type", "task queue", "next", "last", "fired", "missed", "overlapped")
    client.print_items(columns, _row, found, "schedule")


def _row(schedule: Schedule) -> tuple[object, ...]:
    last = schedule.firings[0] if schedule.firings else ScheduleFiring()
    return (
        schedule.schedule_id,
        _when(schedule.spec),
        schedule.spec.activity.activity_type,
        schedule.spec.activity.task_queue,
        "PAUSED" if schedule.paused else format_time_left(schedule, "next_time"),
        format_age(last, "fire_time"),
        schedule.fired,
        schedule.missed,
        schedule.overlapped,
    )


def _when(spec: ScheduleSpec) -> str:
    if spec.cron:
        return f"{spec.cron} ({spec.time_zone})"
    offset = f", {humanize_ms(to_ms(spec.offset))} later" if spec.HasField("offset") else ""
    return f"every {humanize_ms(to_ms(spec.every))}{offset}"


@schedules.command()
@click.argument("name")
@client_command()
def describe(client: Client, *, name: str, as_json: bool) -> None:
    """Show everything known about one schedule, with its next and last firings.

    \b
    Example:
      liveness schedules describe nightly
    """
    request = GetScheduleRequest(namespace=client.namespace, schedule_id=name)
    found = client.call(client.schedules.GetSchedule, request).schedule
    if as_json:
        print_json(to_json(found))
    else:
        print_fields(_fields(found))


def _fields(schedule: Schedule) -> list[tuple[str, object]]:
    spec = schedule.spec
    activity = spec.activity
    fields: list[tuple[str, object]] = [
        ("schedule", schedule.schedule_id),
        ("namespace", schedule.namespace),
        ("state", "PAUSED" if schedule.paused else "ACTIVE"),
        ("reason", schedule.pause_reason),
        ("when", _when(spec)),
        ("missed ticks", enum_name(MissedPolicy, spec.missed).lower()),
        ("overlap", enum_name(OverlapPolicy, spec.overlap).lower()),
        ("start window", humanize_ms(to_ms(spec.start_window))),
        ("note", spec.note),
        ("type", activity.activity_type),
        ("task queue", activity.task_queue),
        ("input", payload_text(activity.input)),
        ("fired", schedule.fired),
        ("missed", schedule.missed),
        ("overlapped", schedule.overlapped),
        ("created", format_time(schedule, "create_time")),
        ("updated", format_time(schedule, "update_time")),
    ]
    fields += [("next", format_timestamp(moment)) for moment in schedule.next_times]
    fields += [
        ("fired at", f"{format_time(firing, 'fire_time')} as {activity_name(firing.id)}")
        for firing in schedule.firings
    ]
    return fields


reason_option = click.option(
    "--reason", default="", metavar="TEXT", help="The reason; recorded with the event."
)


@schedules.command()
@click.argument("name")
@reason_option
@client_command()
def pause(client: Client, *, name: str, reason: str, as_json: bool) -> None:
    """Let a schedule not fire until it is resumed.

    \b
    Example:
      liveness schedules pause nightly --reason "the warehouse moves"
    """
    request = PauseScheduleRequest(namespace=client.namespace, schedule_id=name, reason=reason)
    response = client.call(client.schedules.PauseSchedule, request)
    if as_json:
        print_json(to_json(response))
    else:
        print_note(f"Schedule {name} {'is' if response.changed else 'was'} paused.")


@schedules.command()
@click.argument("name")
@reason_option
@client_command()
def resume(client: Client, *, name: str, reason: str, as_json: bool) -> None:
    """Let a paused schedule continue with the first tick after now.

    \b
    Example:
      liveness schedules resume nightly
    """
    request = ResumeScheduleRequest(namespace=client.namespace, schedule_id=name, reason=reason)
    response = client.call(client.schedules.ResumeSchedule, request)
    if as_json:
        print_json(to_json(response))
        return
    when = f"it fires next at {format_time(response, 'next_time')}" if response.HasField("next_time") else ""
    what = "is resumed" if response.changed else "was not paused"
    print_note(f"Schedule {name} {what}{'; ' if when else ''}{when}.")


@schedules.command()
@click.argument("name")
@click.option(
    "--trigger-id",
    metavar="ID",
    help="The same id fires once, however often the command is repeated.  [default: a new one]",
)
@client_command()
def trigger(client: Client, *, name: str, trigger_id: str | None, as_json: bool) -> None:
    """Fire a schedule now, beside its ticks, also while it is paused.

    \b
    Example:
      liveness schedules trigger nightly
    """
    request = TriggerScheduleRequest(
        namespace=client.namespace,
        schedule_id=name,
        trigger_id=uuid4().hex if trigger_id is None else trigger_id,
    )
    response = client.call(client.schedules.TriggerSchedule, request)
    if as_json:
        print_json(to_json(response))
    elif response.created:
        print_note(f"Schedule {name} has fired: activity {activity_name(response.id)}.")
    else:
        print_note(f"Schedule {name} had fired for this id before: activity {activity_name(response.id)}.")


@schedules.command()
@click.argument("name")
@reason_option
@confirm_option
@client_command()
def delete(client: Client, *, name: str, reason: str, yes: bool, as_json: bool) -> None:
    """Delete a schedule. Activities that it has scheduled stay as they are.

    \b
    Example:
      liveness schedules delete nightly --reason "replaced by weekly"
    """
    if not yes:
        request = GetScheduleRequest(namespace=client.namespace, schedule_id=name)
        found = client.call(client.schedules.GetSchedule, request).schedule
        confirm(
            f"Delete schedule {name} of namespace {client.namespace}? {_next_sentence(found).capitalize()}."
        )
    response = client.call(
        client.schedules.DeleteSchedule,
        DeleteScheduleRequest(namespace=client.namespace, schedule_id=name, reason=reason),
    )
    if as_json:
        print_json(to_json(response))
    else:
        print_note(f"Schedule {name} is deleted.")
