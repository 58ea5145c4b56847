"""`liveness nodes`: list the nodes of the cluster."""

from __future__ import annotations

import click

from liveness.cli.client import Client, client_command
from liveness.cli.output import enum_name, format_age, print_json_array, print_table
from liveness.cli.shared_options import SharedOptionsGroup
from liveness.v1.admin_pb2 import ListNodesRequest, Node, NodeState


@click.group(cls=SharedOptionsGroup)
def nodes() -> None:
    """List the nodes of the cluster."""


@nodes.command("list")
@client_command(namespace=False)
def list_(client: Client, *, as_json: bool) -> None:
    """List the servers that share the database, with their shards. The one that answered is marked with *.

    A LOST server has not renewed its lease; the others serve its shards.

    \b
    Examples:
      liveness nodes list
      liveness nodes list --json | jq -r '.[] | select(.state == "NODE_STATE_SERVING") | .address'
    """
    found = client.call(client.admin.ListNodes, ListNodesRequest()).nodes
    if as_json:
        print_json_array(found)
        return
    print_table(
        ("node", "kind", "state", "address", "shards", "version", "started", "renewed"), map(_row, found)
    )


def _row(node: Node) -> tuple[object, ...]:
    return (
        f"{node.node_id} *" if node.answering else node.node_id,
        node.kind,
        enum_name(NodeState, node.state),
        node.address,
        node.shards,
        node.version,
        format_age(node, "start_time"),
        format_age(node, "renew_time"),
    )
