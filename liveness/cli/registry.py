"""`liveness registry`: the directory of registered components, and commands that play one."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from itertools import islice

import click

from liveness.cli import durations
from liveness.cli.client import LIST_ALL_NAMESPACES, Client, Milliseconds, client_command, limit_option
from liveness.cli.errors import CommandError, UsageError
from liveness.cli.output import (
    enum_name,
    format_age,
    format_time,
    format_time_left,
    print_fields,
    print_json,
    print_note,
    print_table,
    to_json,
)
from liveness.cli.shared_options import SharedOptionsGroup
from liveness.v1.registry_pb2 import RegistryEntry, ReplicaPolicy
from liveness.v1.registry_service_pb2 import (
    DeregisterRequest,
    GetEntryRequest,
    HeartbeatRequest,
    ListEntriesRequest,
    RegisterRequest,
)
from liveness.v1.worker_pb2 import WorkerState

COLUMNS = ("component", "status", "capacity", "age", "process", "replicas", "uri", "labels")
REPLICA_POLICIES = {
    name.removeprefix("REPLICA_POLICY_").lower(): number for name, number in ReplicaPolicy.items() if number
}
NOT_FOUND = "REGISTRY_ENTRY_NOT_FOUND"
SEARCHED_MAX = 1_000


@click.group(cls=SharedOptionsGroup)
def registry() -> None:
    """List registered components: worker pools, servers, brokers.

    A component has a kind and a name, KIND:NAME, and a lease, which its heartbeats renew. Without them it is offline.

    \b
    Examples:
      liveness registry list --kind broker
      liveness registry describe broker:nats-1
      liveness registry register broker:nats-1 --uri nats://host:4222 --interval 15s
    """


def _pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for value in values:
        name, mark, text = value.partition("=")
        if not name or not mark:
            raise UsageError(f"{value!r} is not NAME=VALUE, such as {param.opts[0]} zone=b")
        found[name] = text
    return found


def _key(ctx: click.Context, param: click.Parameter, value: str) -> str:
    kind, _, name = value.partition(":")
    if not kind or not name:
        raise UsageError(f"{value!r} is no component; write KIND:NAME, such as broker:nats-1")
    return value


label_option = click.option(
    "--label", "labels", metavar="NAME=VALUE", multiple=True, callback=_pairs, help="May be repeated."
)
session_option = click.option(
    "--session", "session_id", default="", metavar="ID", help="The process; without it, whoever has the name."
)
key_argument = click.argument("key", metavar="KIND:NAME", callback=_key)


@registry.command("list")
@click.option("--kind", default="", metavar="KIND", help="Such as worker_pool, server_api or broker.")
@click.option("--status", default="", metavar="STATUS", help="As shown: ready, offline, …")
@label_option
@click.option(
    "--runtime",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_pairs,
    help="A member of the runtime facts, such as type=cpu; may be repeated.",
)
@click.option("--stale", is_flag=True, help="Only those not heard of for two expected intervals, or offline.")
@limit_option
@client_command(all_namespaces=LIST_ALL_NAMESPACES)
def list_(
    client: Client,
    *,
    kind: str,
    status: str,
    labels: dict[str, str],
    runtime: dict[str, str],
    stale: bool,
    limit: int,
    as_json: bool,
) -> None:
    """List registered components, ordered by kind and name.

    The age is that of the last heartbeat. A replica is another process that registered the same name.

    \b
    Examples:
      liveness registry list
      liveness registry list --kind worker_pool --status ready --label zone=b
      liveness registry list --stale
      liveness registry list --json | jq -r '.[] | select(.status == "offline") | .worker_instance_key'
    """
    entries = _entries(
        client,
        ListEntriesRequest(
            namespace=client.namespace, kind=kind, status=status, labels=labels, runtime=runtime, stale=stale
        ),
    )
    found = list(islice(entries, limit) if limit else entries)
    if as_json:
        print_json([to_json(entry) for entry in found])
    elif found or client.all_namespaces:
        client.print_items(COLUMNS, _row, found, "component")
    else:
        print_note(
            _nothing_found(client, kind, is_filtered=bool(kind or status or labels or runtime or stale))
        )
        client.print_namespace_hint()
    if limit and next(entries, None) is not None:
        print_note(f"These are the first {limit}; --limit 0 shows all.")


def _entries(client: Client, request: ListEntriesRequest) -> Iterator[RegistryEntry]:
    return client.list_all(client.registry.ListEntries, request, lambda response: response.entries, 0)


def _nothing_found(client: Client, kind: str, *, is_filtered: bool) -> str:
    if not is_filtered:
        return (
            f"No component is registered in namespace {client.namespace}; "
            "register one: liveness registry register broker:nats-1 --uri nats://host:4222 (our own servers are in --namespace liveness)"
        )
    kinds = {entry.kind for entry in islice(_entries(client, _all(client)), SEARCHED_MAX)}
    similar = [] if not kind or kind in kinds else get_close_matches(kind, kinds, n=1)
    meant = f" Did you mean --kind {similar[0]}?" if similar else ""
    return f"No such component in namespace {client.namespace}.{meant}"


def _all(client: Client) -> ListEntriesRequest:
    return ListEntriesRequest(namespace=client.namespace)


def _row(entry: RegistryEntry) -> tuple[object, ...]:
    return (
        entry.worker_instance_key,
        _status_text(entry),
        entry.capacity if entry.HasField("capacity") else "",
        format_age(entry, "last_seen_time"),
        _process(entry.host_name, entry.process_id),
        len(entry.replicas) or "",
        entry.uri,
        _labels_text(entry),
    )


def _status_text(entry: RegistryEntry) -> str:
    is_late = entry.stale and entry.state == WorkerState.WORKER_STATE_ACTIVE
    return f"{entry.status} (stale)" if is_late else entry.status


def _process(host_name: str, process_id: str) -> str:
    return f"{host_name}:{process_id}" if host_name or process_id else ""


def _labels_text(entry: RegistryEntry) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(entry.labels.items()))


@registry.command()
@key_argument
@client_command()
def describe(client: Client, *, key: str, as_json: bool) -> None:
    """Show all details of one component, with its replicas.

    \b
    Example:
      liveness registry describe broker:nats-1
    """
    request = GetEntryRequest(namespace=client.namespace, worker_instance_key=key)
    try:
        entry = client.call(client.registry.GetEntry, request).entry
    except CommandError as error:
        raise _with_suggestion(client, key, error) from error
    if as_json:
        print_json(to_json(entry))
        return
    _print_entry(entry)


def _with_suggestion(client: Client, key: str, error: CommandError) -> CommandError:
    if error.reason != NOT_FOUND:
        return error
    try:
        known = [entry.worker_instance_key for entry in islice(_entries(client, _all(client)), SEARCHED_MAX)]
    except CommandError:
        return error  # the caller may not list them
    similar = get_close_matches(key, known, n=1)
    return CommandError(f"{error.message} Did you mean {similar[0]}?", error.reason) if similar else error


def _print_entry(entry: RegistryEntry) -> None:
    seen, first = format_time(entry, "last_seen_time"), format_time(entry, "first_seen_time")
    error = format_time(entry, "last_error_time")
    interval = durations.format_ms(durations.to_ms(entry.expected_interval))
    print_fields(
        (
            ("component", entry.worker_instance_key),
            ("namespace", entry.namespace),
            ("status", _status_text(entry)),
            ("worker", enum_name(WorkerState, entry.state)),
            ("uri", entry.uri),
            ("capacity", entry.capacity if entry.HasField("capacity") else ""),
            ("process", _process(entry.host_name, entry.process_id)),
            ("labels", _labels_text(entry)),
            ("capabilities", " ".join(entry.capabilities)),
            ("runtime", entry.runtime_json),
            ("last seen", seen and f"{seen} ({format_age(entry, 'last_seen_time')})"),
            ("first seen", first and f"{first} ({format_age(entry, 'first_seen_time')})"),
            ("expected every", interval if entry.HasField("expected_interval") else ""),
            ("lease ends", format_time_left(entry, "lease_deadline")),
            ("lease epoch", entry.lease_epoch),
            ("activities", entry.bound_activity_count or ""),
            ("heartbeats", entry.heartbeat_count or ""),
            ("successes", entry.successes or ""),
            ("errors", entry.errors or ""),
            ("last error", entry.last_error),
            ("last error at", error and f"{error} ({format_age(entry, 'last_error_time')})"),
        )
    )
    if entry.replicas:
        click.echo("\nreplicas, which hold no lease:")
        print_table(
            ("process", "uri", "age", "since"),
            (
                (
                    _process(replica.host_name, replica.process_id) or replica.session_id,
                    replica.uri,
                    format_age(replica, "last_seen_time"),
                    format_age(replica, "first_seen_time"),
                )
                for replica in entry.replicas
            ),
        )


@registry.command()
@key_argument
@click.option("--uri", default="", help="Where it is reached.")
@click.option("--status", default="", help="[default: ready]")
@click.option("--capacity", type=click.IntRange(0, 2**31 - 1), help="How much it can do at once.")
@label_option
@click.option(
    "--capability", "capabilities", metavar="NAME", multiple=True, help="What it can do; may be repeated."
)
@click.option(
    "--runtime-json", default="", metavar="JSON", help="An object with what it tells about how it runs."
)
@click.option(
    "--interval", type=Milliseconds(), help="How often it will be heard; its lease is three of them."
)
@click.option("--lease", type=Milliseconds(), help="Another lease than three intervals.")
@click.option("--host", "host_name", default="", help="The host of the process.")
@click.option("--pid", "process_id", default="", help="Its process id.")
@click.option("--task-queue", default="", help="The task queue of the activities that it holds.")
@click.option(
    "--on-replica",
    type=click.Choice(tuple(REPLICA_POLICIES)),
    default="show",
    show_default=True,
    help="What happens if another process has the name.",
)
@session_option
@client_command()
def register(
    client: Client,
    *,
    key: str,
    uri: str,
    status: str,
    capacity: int | None,
    labels: dict[str, str],
    capabilities: tuple[str, ...],
    runtime_json: str,
    interval: int | None,
    lease: int | None,
    host_name: str,
    process_id: str,
    task_queue: str,
    on_replica: str,
    session_id: str,
    as_json: bool,
) -> None:
    """Register a component, or say anew what is known of it.

    For scripts, and for components that have no client of their own. Send heartbeats afterwards, or it goes offline.

    \b
    Examples:
      liveness registry register broker:nats-1 --uri nats://host:4222 --interval 15s
      liveness registry register worker_pool:images --capacity 16 --label zone=b --on-replica number
    """
    request = RegisterRequest(
        namespace=client.namespace,
        worker_instance_key=key,
        session_id=session_id,
        uri=uri,
        status=status,
        labels=labels,
        capabilities=capabilities,
        capacity=capacity,
        runtime_json=runtime_json,
        expected_interval=durations.from_ms(interval) if interval else None,
        lease_duration=durations.from_ms(lease) if lease else None,
        host_name=host_name,
        process_id=process_id,
        task_queue=task_queue,
        on_replica=REPLICA_POLICIES[on_replica],
    )
    response = client.call(client.registry.Register, request)
    if as_json:
        print_json(to_json(response))
        return
    name = response.entry.worker_instance_key
    if response.is_replica:
        owner = _process(response.entry.host_name, response.entry.process_id) or "another process"
        print_note(f"{name} belongs to {owner}; this process is shown as a replica, and holds no lease.")
        return
    wait = durations.format_ms(durations.to_ms(response.next_heartbeat_after))
    click.echo(f"{name} is registered; send a heartbeat every {wait}: liveness registry heartbeat {name}")


@registry.command()
@key_argument
@click.option("--status", default="", help="[default: as before]")
@click.option(
    "--sequence", type=click.IntRange(0), default=0, help="Counters of a repeated number are not added."
)
@click.option("--successes", type=click.IntRange(0), default=0, help="Since the last heartbeat.")
@click.option("--errors", type=click.IntRange(0), default=0, help="Since the last heartbeat.")
@click.option("--last-error", default="", help="What went wrong last.")
@session_option
@client_command()
def heartbeat(
    client: Client,
    *,
    key: str,
    status: str,
    sequence: int,
    successes: int,
    errors: int,
    last_error: str,
    session_id: str,
    as_json: bool,
) -> None:
    """Renew the lease of a registered component; one that is offline comes back.

    \b
    Example:
      liveness registry heartbeat broker:nats-1 --status draining
    """
    request = HeartbeatRequest(
        namespace=client.namespace,
        worker_instance_key=key,
        session_id=session_id,
        sequence=sequence,
        status=status,
        successes=successes,
        errors=errors,
        last_error=last_error,
    )
    try:
        response = client.call(client.registry.Heartbeat, request)
    except CommandError as error:
        raise _with_suggestion(client, key, error) from error
    if as_json:
        print_json(to_json(response))
    elif response.is_replica:
        print_note(f"{key} belongs to another process; this one was seen as a replica.")
    else:
        entry = response.entry
        click.echo(f"{key} is {entry.status}; its lease ends {format_time_left(entry, 'lease_deadline')}.")


@registry.command()
@key_argument
@click.option("--reason", default="", help="For its history.")
@session_option
@client_command()
def deregister(client: Client, *, key: str, reason: str, session_id: str, as_json: bool) -> None:
    """Say goodbye for a component. What it held is rescheduled at once.

    \b
    Example:
      liveness registry deregister broker:nats-1 --reason "moved to another host"
    """
    request = DeregisterRequest(
        namespace=client.namespace, worker_instance_key=key, session_id=session_id, reason=reason
    )
    try:
        response = client.call(client.registry.Deregister, request)
    except CommandError as error:
        raise _with_suggestion(client, key, error) from error
    if as_json:
        print_json(to_json(response))
        return
    moved = response.rescheduled_activities
    click.echo(f"{key} is deregistered" + (f"; {moved} activities are rescheduled." if moved else "."))
