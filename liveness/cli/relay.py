"""`liveness relay`: show the state of the message relay, and replay messages."""

from __future__ import annotations

import click

from liveness.cli import durations
from liveness.cli.client import Client, Milliseconds, client_command
from liveness.cli.output import format_age, print_fields, print_json, print_note, print_table, to_json
from liveness.cli.shared_options import SharedOptionsGroup
from liveness.v1.admin_pb2 import GetRelayStatusRequest, RelayConnection, RelayShard, ReplayRelayRequest


@click.group(cls=SharedOptionsGroup)
def relay() -> None:
    """Show the state of the message relay, and replay messages.

    \b
    Examples:
      liveness relay status
      liveness relay replay --since 1h
    """


@relay.command()
@client_command(namespace=False)
def status(client: Client, *, as_json: bool) -> None:
    """Show the connection to the broker, and the progress of each shard.

    \b
    Examples:
      liveness relay status
      liveness relay status --json | jq '[.shards[].backlog | tonumber] | add'
    """
    found = client.call(client.admin.GetRelayStatus, GetRelayStatusRequest())
    if as_json:
        print_json(to_json(found))
        return
    for connection in found.connections:
        print_fields(_fields(connection))
    print_table(
        ("shard", "waiting reschedules", "acknowledged", "newest", "waiting events"), map(_row, found.shards)
    )


@relay.command()
@click.option(
    "--since",
    type=Milliseconds(),
    required=True,
    help="The age of the oldest message to replay, for example 30m, 1h or 2d.",
)
@click.option(
    "--namespace",
    "-n",
    "only_namespace",
    metavar="NAME",
    default="",
    help="Only messages of this namespace.  [default: all]",
)
@click.option(
    "--task-queue", metavar="NAME", default="", help="Only reschedules of this task queue.  [default: all]"
)
@click.option("--events", is_flag=True, help="Replay events too, if the server relays them.")
@client_command(namespace=False, timeout="10m")
def replay(
    client: Client, *, since: int, only_namespace: str, task_queue: str, events: bool, as_json: bool
) -> None:
    """Publish messages again that the broker had acknowledged and then lost.

    Message ids stay the same, so the broker drops the messages that it still has.

    \b
    Examples:
      liveness relay replay --since 1h
      liveness relay replay --since 2d --namespace orders --task-queue resize
      liveness relay replay --since 30m --events
    """
    request = ReplayRelayRequest(
        namespace=only_namespace, task_queue=task_queue, since=durations.from_ms(since), events=events
    )
    done = client.call(client.admin.ReplayRelay, request)
    if as_json:
        print_json(to_json(done))
        return
    published = f"{done.reschedules} reschedules" + (f" and {done.events} events" if events else "")
    click.echo(f"Published again: {published}, of which the broker still had {done.duplicates}.")
    if done.refused:
        print_note(f"The broker refused {done.refused} more; the server's log says why.")


def _fields(connection: RelayConnection) -> list[tuple[str, object]]:
    return [
        ("broker", ", ".join(connection.servers)),
        ("stream", connection.stream),
        ("relays", "reschedules and events" if connection.relays_events else "reschedules"),
        ("connection", "ok" if connection.connected else "FAILED (messages wait)"),
        ("last error", connection.last_error),
        ("", format_age(connection, "last_error_time")),
    ]


def _row(shard: RelayShard) -> tuple[object, ...]:
    return (
        shard.shard_id,
        shard.postponed_tasks,
        shard.acknowledged_sequence,
        shard.last_sequence,
        shard.backlog,
    )
