"""`liveness limits`: how many activities of a workflow may run at once."""

from __future__ import annotations

import click

from liveness.cli.client import (
    LIST_ALL_NAMESPACES,
    Client,
    client_command,
    confirm,
    confirm_option,
    limit_option,
)
from liveness.cli.output import format_age, print_json, print_json_array, print_note, to_json
from liveness.cli.shared_options import SharedOptionsGroup
from liveness.v1.activity_pb2 import (
    ConcurrencyLimit,
    ListConcurrencyLimitsRequest,
    RemoveConcurrencyLimitRequest,
    SetConcurrencyLimitRequest,
)

MAXIMUM_MAX = 1_000_000


@click.group(cls=SharedOptionsGroup)
def limits() -> None:
    """Limit how many activities of a workflow run at once.

    The limit holds whichever nodes hand them out.

    Activities that share a limit share their workflow id, such as the name of a tenant or of a database.

    \b
    Examples:
      liveness limits set tenant-7 --max 3
      liveness limits list
    """


@limits.command("set")
@click.argument("workflow_id")
@click.option(
    "--max",
    "maximum",
    type=click.IntRange(0, MAXIMUM_MAX),
    required=True,
    help="How many may run at once; 0: none starts.",
)
@click.option("--reason", default="", metavar="TEXT", help="The reason; recorded with the event.")
@client_command()
def set_(client: Client, *, workflow_id: str, maximum: int, reason: str, as_json: bool) -> None:
    """Set or change the limit of a workflow. What runs already goes on.

    \b
    Example:
      liveness limits set tenant-7 --max 3
    """
    request = SetConcurrencyLimitRequest(
        namespace=client.namespace, workflow_id=workflow_id, maximum=maximum, reason=reason
    )
    limit = client.call(client.activities.SetConcurrencyLimit, request).limit
    if as_json:
        print_json(to_json(limit))
    else:
        print_note(
            f"At most {maximum} activities of workflow {workflow_id} run at once; "
            f"{limit.running} run now, and {limit.waiting} wait."
        )


@limits.command("list")
@click.argument("prefix", default="")
@limit_option
@client_command(all_namespaces=LIST_ALL_NAMESPACES)
def list_(client: Client, *, prefix: str, limit: int, as_json: bool) -> None:
    """List the limits, ordered by workflow: all, or of those that begin with PREFIX.

    \b
    Examples:
      liveness limits list
      liveness limits list --json | jq '.[] | select(.running == .maximum) | .workflow_id'
    """
    found = client.list_all(
        client.activities.ListConcurrencyLimits,
        ListConcurrencyLimitsRequest(namespace=client.namespace, prefix=prefix),
        lambda response: response.limits,
        limit,
    )
    if as_json:
        print_json_array(found)
        return
    client.print_items(("workflow", "running", "limit", "waiting", "changed"), _row, found, "limit")


def _row(limit: ConcurrencyLimit) -> tuple[object, ...]:
    return (
        limit.workflow_id,
        limit.running if limit.HasField("running") else "unknown",
        limit.maximum,
        limit.waiting if limit.HasField("waiting") else "unknown",
        format_age(limit, "update_time"),
    )


@limits.command()
@click.argument("workflow_id")
@click.option("--reason", default="", metavar="TEXT", help="The reason; recorded with the event.")
@confirm_option
@client_command()
def remove(client: Client, *, workflow_id: str, reason: str, yes: bool, as_json: bool) -> None:
    """Remove the limit of a workflow. All of its activities that wait may start.

    \b
    Example:
      liveness limits remove tenant-7
    """
    if not yes:
        confirm(f"Remove the limit of workflow {workflow_id} of namespace {client.namespace}?")
    request = RemoveConcurrencyLimitRequest(
        namespace=client.namespace, workflow_id=workflow_id, reason=reason
    )
    response = client.call(client.activities.RemoveConcurrencyLimit, request)
    if as_json:
        print_json(to_json(response))
    else:
        print_note(f"Workflow {workflow_id} has no limit any more.")
