"""`liveness progress`: list, describe, report and forget units of work."""

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
from liveness.cli.errors import UsageError
from liveness.cli.output import (
    format_age,
    format_time,
    print_fields,
    print_json,
    print_json_array,
    print_note,
    to_json,
)
from liveness.cli.shared_options import SharedOptionsGroup
from liveness.v1.progress_service_pb2 import (
    ForgetProgressRequest,
    GetProgressRequest,
    ListProgressRequest,
    ReportProgressRequest,
    UnitProgress,
)


@click.group(cls=SharedOptionsGroup)
def progress() -> None:
    """Show how far units of work are, report about them, and forget units.

    A unit is a table, a file or whatever else workers report about, each with the totals of all workers.

    \b
    Examples:
      liveness progress list --failing
      liveness progress report worker-1 orders.items --successes 250
      liveness progress describe orders.items
      liveness progress forget orders.items --reason "the table is gone"
    """


@progress.command("list")
@click.argument("prefix", default="")
@click.option("--failing", is_flag=True, help="Only units whose last report was an error.")
@limit_option
@client_command(all_namespaces=LIST_ALL_NAMESPACES)
def list_(client: Client, *, prefix: str, failing: bool, limit: int, as_json: bool) -> None:
    """List units of work, ordered by name: all, or those that begin with PREFIX.

    \b
    Examples:
      liveness progress list
      liveness progress list orders. --failing
      liveness progress list --limit 0 --json | jq -r '.[].unit'
    """
    found = client.list_all(
        client.progress.ListProgress,
        ListProgressRequest(namespace=client.namespace, prefix=prefix, failing=failing),
        lambda response: response.units,
        limit,
    )
    if as_json:
        print_json_array(found)
        return
    columns = ("unit", "successes", "errors", "per minute", "last success", "last error", "error")
    client.print_items(columns, _unit_row, found, "unit of work")


def _unit_row(unit: UnitProgress) -> tuple[object, ...]:
    return (
        unit.unit,
        unit.successes,
        unit.errors,
        f"{unit.successes_per_minute:.0f}",
        format_age(unit, "last_success_time"),
        format_age(unit, "last_error_time"),
        unit.last_error,
    )


@progress.command()
@click.argument("worker", metavar="WORKER")
@click.argument("unit")
@click.option("--successes", type=click.IntRange(0), default=0, help="How many were done.")
@click.option("--error", default="", metavar="TEXT", help="What went wrong.")
@click.option(
    "--errors", type=click.IntRange(0), default=0, help="How many errors.  [default: 1 with --error]"
)
@click.option(
    "--report-id", default="", metavar="ID", help="A report that is sent again with its ID counts once."
)
@client_command()
def report(
    client: Client,
    *,
    worker: str,
    unit: str,
    successes: int,
    error: str,
    errors: int,
    report_id: str,
    as_json: bool,
) -> None:
    """Add to the totals of a unit, as the worker with the instance key WORKER.

    For scripts. Neither the worker nor the unit need be known.

    \b
    Examples:
      liveness progress report worker-1 orders.items --successes 250 --report-id batch-17
      liveness progress report worker-1 orders.items --error "the model answered 429"
    """
    if errors and not error:
        raise UsageError("--errors needs --error, the text of the last one")
    response = client.call(
        client.progress.ReportProgress,
        ReportProgressRequest(
            namespace=client.namespace,
            worker_instance_key=worker,
            unit=unit,
            successes=successes,
            error=error,
            errors=errors,
            report_id=report_id,
        ),
    )
    if as_json:
        print_json(to_json(response))
        return
    found = response.progress
    before = "This report was counted before: " if response.repeated_report else ""
    click.echo(f"{before}{unit} has {found.successes} successes and {found.errors} errors.")


@progress.command()
@click.argument("unit")
@client_command()
def describe(client: Client, *, unit: str, as_json: bool) -> None:
    """Show how far one unit of work is.

    \b
    Example:
      liveness progress describe orders.items
    """
    request = GetProgressRequest(namespace=client.namespace, unit=unit)
    found = client.call(client.progress.GetProgress, request).progress
    if as_json:
        print_json(to_json(found))
    else:
        print_fields(_fields(found))


def _fields(unit: UnitProgress) -> list[tuple[str, object]]:
    return [
        ("unit", unit.unit),
        ("namespace", unit.namespace),
        ("successes", unit.successes),
        ("errors", unit.errors),
        ("last minute", f"{unit.successes_per_minute:.0f} successes"),
        ("last hour", f"{unit.successes_per_hour:.0f} successes"),
        ("last success", format_time(unit, "last_success_time")),
        ("by", unit.last_success_worker),
        ("last error", unit.last_error),
        ("last error at", format_time(unit, "last_error_time")),
        ("reported by", unit.last_error_worker),
        ("first report", format_time(unit, "create_time")),
        ("last report", format_time(unit, "update_time")),
    ]


@progress.command()
@click.argument("unit")
@click.option("--reason", default="", metavar="TEXT", help="The reason; recorded with the event.")
@confirm_option
@client_command()
def forget(client: Client, *, unit: str, reason: str, yes: bool, as_json: bool) -> None:
    """Remove a unit that nobody works on any more, with its totals. The next report begins it anew.

    \b
    Example:
      liveness progress forget orders.items --reason "the table is gone"
    """
    if not yes:
        request = GetProgressRequest(namespace=client.namespace, unit=unit)
        found = client.call(client.progress.GetProgress, request).progress
        confirm(
            f"Forget unit {unit} of namespace {client.namespace} with its {found.successes} successes and {found.errors} errors?"
        )
    response = client.call(
        client.progress.ForgetProgress,
        ForgetProgressRequest(namespace=client.namespace, unit=unit, reason=reason),
    )
    if as_json:
        print_json(to_json(response))
    else:
        print_note(f"Unit {unit} is forgotten.")
