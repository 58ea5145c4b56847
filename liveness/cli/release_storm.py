"""`liveness workers release-storm`: end the expiries that the storm throttle holds."""

from __future__ import annotations

import click

from liveness.cli.client import Client, client_command, confirm, confirm_option
from liveness.cli.output import print_json, print_note, to_json
from liveness.v1.admin_pb2 import ReleaseStormRequest
from liveness.v1.fleet_pb2 import GetFleetRequest


@click.command("release-storm")
@click.option("--reason", default="", metavar="TEXT", help="The reason; for the server's log.")
@confirm_option
@client_command()
def release_storm(client: Client, *, reason: str, yes: bool, as_json: bool) -> None:
    """End the leases that a storm holds, now and all at once.

    When many workers of a namespace fall silent together, the server delays the end of their leases, so that workers that
    come back have lost nothing. If you know that they are gone, this command reschedules their work. For the next minute
    the server delays nothing. To turn the delay off: liveness config set storm_hold=0.

    \b
    Example:
      liveness workers release-storm -n billing --reason "the rack is burnt"
    """
    if not yes:
        fleet = client.call(client.admin.GetFleet, GetFleetRequest(namespace=client.namespace))
        held = sum(found.held_expiries for found in fleet.namespaces)
        confirm(
            f"End the held leases of {_worker_count(held)} in namespace {client.namespace} and reschedule what they hold?"
        )
    request = ReleaseStormRequest(namespace=client.namespace, reason=reason)
    response = client.call(client.admin.ReleaseStorm, request)
    if as_json:
        print_json(to_json(response))
    elif response.released:
        print_note(f"Released: the leases of {_worker_count(response.released)} end now.")
    else:
        print_note(
            f"Nothing was held in namespace {client.namespace}; for the next minute nothing will be held."
        )


def _worker_count(count: int) -> str:
    return f"{count} {'worker' if count == 1 else 'workers'}"
