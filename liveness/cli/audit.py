"""`liveness audit`: what operators and admins changed, and who was denied access."""

from __future__ import annotations

import click

from liveness.cli.client import Client, Milliseconds, client_command, limit_option
from liveness.cli.output import format_time, print_json_array, print_table
from liveness.clock import SystemClock
from liveness.v1.audit_pb2 import AuditEntry, ListAuditRequest

HEADINGS = ("time", "who", "credential", "from", "what", "namespace", "target", "reason", "outcome", "calls")
ANONYMOUS = "anonymous"


@click.command()
@click.option("--since", type=Milliseconds(), help="Only what is not older, for instance 1h or 7d.")
@click.option("--principal", metavar="NAME", default="", help="Only what this principal did.")
@click.option(
    "--namespace", "-n", "about", metavar="NAME", default="", help="Only this namespace.  [default: all]"
)
@click.option("--method", metavar="SERVICE/METHOD", default="", help="Only calls of this method.")
@limit_option
@client_command(namespace=False)
def audit(
    client: Client, *, since: int | None, principal: str, about: str, method: str, limit: int, as_json: bool
) -> None:
    """Show what operators and admins changed, and denied access.

    Newest first; denied access is summed by the minute.

    \b
    Examples:
      liveness audit --since 1h
      liveness audit --principal oncall --namespace shop
      liveness audit --json --limit 0 | jq -r 'map(select(.outcome == "UNAUTHENTICATED")) | .[].address'
    """
    request = ListAuditRequest(namespace=about, principal=principal, method=method)
    if since is not None:
        request.since.FromMilliseconds(max(0, SystemClock().wall_ms() - since))
    found = client.list_all(client.admin.ListAudit, request, lambda response: response.entries, limit)
    if as_json:
        print_json_array(found)
    else:
        print_table(HEADINGS, map(_row, found))


def _row(entry: AuditEntry) -> tuple[object, ...]:
    return (
        format_time(entry, "time"),
        entry.principal or ANONYMOUS,
        f"{entry.credential} {entry.credential_id}".strip(),
        entry.address,
        entry.method.partition("/")[2] or entry.method,
        entry.namespace,
        entry.target,
        entry.reason,
        entry.outcome,
        entry.calls,
    )
