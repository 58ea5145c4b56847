"""`liveness workers`: list, describe, pause, drain, expire and forget workers."""

from __future__ import annotations

from collections.abc import Mapping

import click

from liveness.cli.client import (
    LIST_ALL_NAMESPACES,
    Client,
    client_command,
    confirm,
    confirm_option,
    limit_option,
)
from liveness.cli.death_certificate import why
from liveness.cli.durations import format_ms, from_ms, to_ms
from liveness.cli.errors import UsageError, escape_control
from liveness.cli.event_text import describe_event
from liveness.cli.output import (
    enum_name,
    format_age,
    format_time,
    print_fields,
    print_json,
    print_json_array,
    print_note,
    print_table,
    to_json,
)
from liveness.cli.release_storm import release_storm
from liveness.cli.shared_options import SharedOptionsGroup
from liveness.cli.temporal_link import temporal_link
from liveness.cli.worker_commands import drain, pause, resume
from liveness.cli.worker_filter import STATES, filter_options
from liveness.v1.admin_pb2 import ExpireWorkerRequest, ForgetWorkerRequest
from liveness.v1.event_pb2 import Event
from liveness.v1.fleet_pb2 import GetFleetRequest
from liveness.v1.service_pb2 import (
    CountWorkersRequest,
    CountWorkersResponse,
    DescribeWorkerRequest,
    GetWorkerHistoryRequest,
    ListWorkersRequest,
    WorkerFilter,
)
from liveness.v1.worker_pb2 import (
    INACTIVE_REASON_DISCONNECTED,
    INACTIVE_REASON_DRAINED,
    INACTIVE_REASON_FORCED,
    INACTIVE_REASON_LEASE_EXPIRED,
    INACTIVE_REASON_PROCESS_EXITED,
    INACTIVE_REASON_SHUTDOWN,
    WORKER_STATE_ACTIVE,
    WORKER_STATE_CLEANED_UP,
    WORKER_STATE_INACTIVE,
    InactiveReason,
    Worker,
    WorkerState,
    WorkerStatus,
)

COLUMNS = (
    "worker",
    "state",
    "last heartbeat",
    "lease",
    "stream",
    "loop lag",
    "activities",
    "task queue",
    "build",
    "host",
)

# Why a worker is INACTIVE, in a word: somebody asked for its end, or it died.
INACTIVE_WORDS: Mapping[int, str] = {
    INACTIVE_REASON_LEASE_EXPIRED: "died",
    INACTIVE_REASON_DISCONNECTED: "died",
    INACTIVE_REASON_PROCESS_EXITED: "died",
    INACTIVE_REASON_SHUTDOWN: "goodbye",
    INACTIVE_REASON_DRAINED: "drained",
    INACTIVE_REASON_FORCED: "forced out",
}


@click.group(cls=SharedOptionsGroup)
def workers() -> None:
    """List, pause, drain, expire and forget workers.

    \b
    Examples:
      liveness workers list --state inactive
      liveness workers describe worker-7
      liveness workers history worker-7 --newest-first --limit 5
      liveness workers why worker-7
      liveness workers drain worker-7 --limit 5m
      liveness workers forget worker-7
    """


for _command in (pause, resume, drain, release_storm, why):
    workers.add_command(_command)


@workers.command("list")
@filter_options(STATES)
@click.option(
    "--count", is_flag=True, help="Only print the number of workers in each state, and what they counted."
)
@limit_option
@client_command(all_namespaces=LIST_ALL_NAMESPACES)
def list_(client: Client, *, where: WorkerFilter | None, count: bool, limit: int, as_json: bool) -> None:
    """List workers, ordered by key. A worker must meet all conditions.

    An INACTIVE worker died, or ended: by its own goodbye, a drain, or an operator who forced it out.

    \b
    Examples:
      liveness workers list
      liveness workers list --all-namespaces --filter "state:inactive host:db-3 photo"
      liveness workers list -n billing --state active --state inactive --host db-3
      liveness workers list --count
      liveness workers list --limit 0 --json | jq -r '.[].worker_instance_key'
    """
    if count:
        if client.all_namespaces:
            raise UsageError(
                "--count is of one namespace; `liveness namespaces list` counts the workers of all"
            )
        request = CountWorkersRequest(namespace=client.namespace, filter=where)
        _print_count(client.call(client.liveness.CountWorkers, request), as_json=as_json)
        if not (where or as_json):
            _print_totals(client)
        return
    found = client.list_all(
        client.liveness.ListWorkers,
        ListWorkersRequest(namespace=client.namespace, filter=where),
        lambda response: response.workers,
        limit,
    )
    if as_json:
        print_json_array(found)
        return
    client.print_items(COLUMNS, _worker_row, found, "worker")


@workers.command()
@click.argument("key")
@client_command()
def describe(client: Client, *, key: str, as_json: bool) -> None:
    """Show all details of one worker, with the activities it holds.

    \b
    Example:
      liveness workers describe worker-7
    """
    request = DescribeWorkerRequest(namespace=client.namespace, worker_instance_key=key)
    worker = client.call(client.liveness.DescribeWorker, request).worker
    if as_json:
        print_json(to_json(worker))
        return
    print_fields(_worker_fields(worker))
    for title, activities in (
        ("holds activities", worker.bound_activities),
        ("lost, still to be stopped by the worker", worker.cancel_activities),
    ):
        if activities:
            click.echo(f"\n{title}:")
            print_table(
                ("workflow", "run", "activity", "attempt", "task queue"),
                (
                    (ref.workflow_id, ref.run_id, ref.activity_id, ref.attempt, ref.task_queue)
                    for ref in activities
                ),
            )
            for link in dict.fromkeys(temporal_link(worker, ref) for ref in activities):
                if link:
                    click.echo(f"  {escape_control(link)}")


@workers.command()
@click.argument("key")
@click.option("--newest-first", is_flag=True, help="Show the newest events first.")
@click.option("--data", is_flag=True, help="Show the events as they are stored, instead of sentences.")
@limit_option
@client_command()
def history(client: Client, *, key: str, newest_first: bool, data: bool, limit: int, as_json: bool) -> None:
    """Show what happened to one worker, a sentence for each event. Plain renewals of the lease are no events.

    \b
    Examples:
      liveness workers history worker-7 --newest-first --limit 5
      liveness workers history worker-7 --data
    """
    events = client.list_all(
        client.liveness.GetWorkerHistory,
        GetWorkerHistoryRequest(
            namespace=client.namespace, worker_instance_key=key, newest_first=newest_first
        ),
        lambda response: response.events,
        limit,
    )
    if as_json:
        print_json_array(events)
        return
    if data:
        rows = [_event_row(event) for event in events]
    else:
        rows = [(format_time(event, "time"), str(describe_event(event))) for event in events]
    if rows:
        print_table(("time", "sequence", "event", "data") if data else ("time", "what happened"), rows)
        return
    print_note(f"No events of worker {key} in namespace {client.namespace}.")
    client.print_namespace_hint()


@workers.command()
@click.argument("key")
@click.option("--reason", required=True, metavar="TEXT", help="The reason; shown in the worker's history.")
@confirm_option
@client_command()
def expire(client: Client, *, key: str, reason: str, yes: bool, as_json: bool) -> None:
    """End a worker's lease now. The server reschedules all its activities at once.

    \b
    Example:
      liveness workers expire worker-7 --reason "host db-3 is gone"
    """
    if not yes:
        request = DescribeWorkerRequest(namespace=client.namespace, worker_instance_key=key)
        held = client.call(client.liveness.DescribeWorker, request).worker.bound_activity_count
        confirm(
            f"Expire worker {key} of namespace {client.namespace} and reschedule its {_activity_count(held)}?"
        )
    response = client.call(
        client.admin.ExpireWorker,
        ExpireWorkerRequest(namespace=client.namespace, worker_instance_key=key, reason=reason),
    )
    if as_json:
        print_json(to_json(response))
    else:
        print_note(
            f"Worker {key} is {_state_name(response.state)}; {_activity_count(response.rescheduled_activities)} rescheduled."
        )


@workers.command()
@click.argument("key")
@click.option("--reason", default="", metavar="TEXT", help="The reason; recorded with the event.")
@confirm_option
@client_command()
def forget(client: Client, *, key: str, reason: str, yes: bool, as_json: bool) -> None:
    """Free the key of a worker that is INACTIVE or CLEANED_UP.

    The worker no longer counts against max_workers, and any process may register under its key, with a higher lease epoch
    than the forgotten worker had. Its activities were rescheduled when its lease ended. Events stay in its history.

    \b
    Example:
      liveness workers forget worker-7 --reason "host db-3 is gone for good"
    """
    if not yes:
        request = DescribeWorkerRequest(namespace=client.namespace, worker_instance_key=key)
        worker = client.call(client.liveness.DescribeWorker, request).worker
        confirm(f"Forget worker {key} of namespace {client.namespace}, which is {_state_name(worker.state)}?")
    response = client.call(
        client.admin.ForgetWorker,
        ForgetWorkerRequest(namespace=client.namespace, worker_instance_key=key, reason=reason),
    )
    if as_json:
        print_json(to_json(response))
    else:
        print_note(
            f"Worker {key} was {_state_name(response.previous_state)} and is forgotten; the next worker of this key begins "
            f"above lease epoch {response.lease_epoch}."
        )


def _print_count(response: CountWorkersResponse, *, as_json: bool) -> None:
    if as_json:
        print_json(to_json(response))
        return
    groups = [(_state_name(group.state), group.count) for group in response.groups]
    print_table(("state", "workers"), [*groups, ("total", response.total)])


def _print_totals(client: Client) -> None:
    """What the namespace's workers counted since they registered."""
    fleet = client.call(
        client.admin.GetFleet, GetFleetRequest(namespace=client.namespace, range=from_ms(2_000))
    )
    for namespace in fleet.namespaces:
        click.echo()
        print_fields(
            [
                ("heartbeats", namespace.heartbeats),
                ("successes", namespace.successes),
                ("errors", namespace.errors),
            ]
        )


def _worker_row(worker: Worker) -> tuple[object, ...]:
    return (
        worker.worker_instance_key,
        _state_text(worker),
        format_age(worker, "last_heartbeat_time"),
        format_ms(to_ms(worker.granted_lease_duration)),
        _stream_text(worker),
        _loop_lag_text(worker),
        worker.bound_activity_count,
        worker.task_queue,
        worker.build_id,
        worker.host_name,
    )


def _event_row(event: Event) -> tuple[object, ...]:
    return format_time(event, "time"), event.sequence, event.type, event.data_json


def _worker_fields(worker: Worker) -> list[tuple[str, object]]:
    lease = format_ms(to_ms(worker.granted_lease_duration))
    why = enum_name(InactiveReason, worker.inactive_reason)
    heartbeat = format_time(worker, "last_heartbeat_time")
    return [
        ("worker", worker.worker_instance_key),
        ("namespace", worker.namespace),
        ("state", _state_text(worker)),
        ("drained at the latest", format_time(worker, "drain_deadline")),
        ("inactive because", ": ".join(part for part in (why, worker.inactive_detail) if part)),
        ("last heartbeat", heartbeat and f"{heartbeat} ({format_age(worker, 'last_heartbeat_time')})"),
        ("lease", f"{lease}, epoch {worker.lease_epoch}"),
        ("lease ends", format_time(worker, "lease_deadline")),
        ("held until", format_time(worker, "held_until")),
        ("stream", _stream_text(worker)),
        ("loop lag", _loop_lag_text(worker)),
        ("cleaned up at", format_time(worker, "cleanup_time")),
        ("session", worker.session_id),
        ("sequence", worker.sequence or ""),
        ("heartbeats", worker.heartbeat_count),
        ("shard", worker.shard_id),
        ("status", enum_name(WorkerStatus, worker.status)),
        ("identity", worker.worker_identity),
        ("task queue", worker.task_queue),
        ("build", worker.build_id),
        ("SDK", f"{worker.sdk_name} {worker.sdk_version}".strip()),
        ("host", worker.host_name),
        ("process", worker.process_id),
        ("started", format_time(worker, "start_time")),
        ("current job", worker.current_job),
        ("capabilities", ", ".join(worker.capabilities)),
        ("labels", ", ".join(f"{name}={worker.labels[name]}" for name in sorted(worker.labels))),
        ("successes", worker.successes),
        ("errors", worker.errors),
        ("last error", worker.last_error),
        ("last error at", format_time(worker, "last_error_time")),
        ("activities", worker.bound_activity_count),
    ]


def _state_name(state: int) -> str:
    return enum_name(WorkerState, state)


def _state_text(worker: Worker) -> str:
    """The state with its flags, for example ACTIVE (suspect, paused)."""
    # A drain ends with the lease, and orders do not apply to a worker that was cleaned up.
    ended = INACTIVE_WORDS.get(worker.inactive_reason, "")
    flags = [
        flag
        for flag, is_set in (
            (ended, bool(ended) and worker.state == WORKER_STATE_INACTIVE),
            ("suspect", worker.suspect),
            ("held", worker.HasField("held_until")),
            ("paused", worker.paused and worker.state != WORKER_STATE_CLEANED_UP),
            ("draining", worker.draining and worker.state == WORKER_STATE_ACTIVE),
        )
        if is_set
    ]
    return f"{_state_name(worker.state)} ({', '.join(flags)})" if flags else _state_name(worker.state)


def _stream_text(worker: Worker) -> str:
    """The state of the worker's stream, and its disconnect grace."""
    parts = []
    if worker.attached:
        parts.append("attached")
    elif worker.suspect:
        parts.append("broken")
    if worker.HasField("disconnect_grace"):
        parts.append(f"grace {format_ms(to_ms(worker.disconnect_grace))}")
    return ", ".join(parts)


def _loop_lag_text(worker: Worker) -> str:
    return format_ms(to_ms(worker.loop_lag)) if worker.HasField("loop_lag") else ""


def _activity_count(count: int) -> str:
    return f"{count} {'activity' if count == 1 else 'activities'}"
