"""`liveness shards`: list the partitions of the server's state."""

from __future__ import annotations

import click

from liveness.cli.client import Client, client_command
from liveness.cli.output import print_json_array, print_table
from liveness.cli.shared_options import SharedOptionsGroup
from liveness.v1.admin_pb2 import ListShardsRequest, Shard

HEADINGS = (
    "shard", "serving", "owner", "address", "epoch", "sequence", "not checkpointed", "active", "inactive", "cleaned up",
)  # fmt: skip


@click.group(cls=SharedOptionsGroup)
def shards() -> None:
    """List the shards with their state."""


@shards.command("list")
@client_command(namespace=False)
def list_(client: Client, *, as_json: bool) -> None:
    """List all shards with their owner, and the state of their log and their workers.

    A shard that is not served shows the node that owned it last and does not answer for it.

    \b
    Examples:
      liveness shards list
      liveness shards list --json | jq -r '.[] | select(.node_id == "node-1:42:1f2e3d4c") | .shard_id'
      liveness shards list --json | jq '[.[] | select(.serving | not)] | length'
    """
    found = client.call(client.admin.ListShards, ListShardsRequest()).shards
    if as_json:
        print_json_array(found)
        return
    print_table(HEADINGS, map(_row, found))


def _row(shard: Shard) -> tuple[object, ...]:
    return (
        shard.shard_id,
        "yes" if shard.serving else "NO",
        shard.node_id or "nobody",
        shard.address,
        shard.epoch,
        shard.last_sequence,
        shard.last_sequence - shard.checkpoint_sequence,
        shard.active_workers,
        shard.inactive_workers,
        shard.cleaned_up_workers,
    )
