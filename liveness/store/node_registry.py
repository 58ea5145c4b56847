"""The registry of nodes: each node renews its own row and reads all nodes and shard owners in the same transaction.

A node's lease is not a point in time but a promise to raise `beat` often enough. Every other node measures on its own
clock how long the beat has not changed, so clocks of different machines are never compared.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import IntEnum
from typing import NamedTuple

from sqlalchemy import Connection, delete, select, tuple_, update

from liveness.store.bulk import insert_rows
from liveness.store.errors import StoreUnusable
from liveness.store.schema import nodes, shards

SERVER_KIND = "server"


class NodeState(IntEnum):
    SERVING = 1
    LEAVING = 2


class NodeRow(NamedTuple):
    """In the order of the table's columns."""

    node_id: str
    kind: str
    address: str
    host: str
    process_id: int
    version: str
    state: NodeState
    lease_ms: int
    beat: int
    started_wall_ms: int
    renewed_wall_ms: int
    machine: str = ""
    """Where `process_id` means something: the running kernel and its process namespace. Empty if that is not known. Host
    names do not tell: machines and containers may share them."""


class ShardHead(NamedTuple):
    shard_id: int
    epoch: int
    owner: str
    """The id of the owning node; empty if there is none."""
    last_seq: int
    observed_ms: int


class ClusterView(NamedTuple):
    nodes: tuple[NodeRow, ...]
    shards: tuple[ShardHead, ...]
    unusable: StoreUnusable | None = None
    """Why the node that reads this must no longer use the database, if so."""


def renew_node(connection: Connection, own_row: NodeRow) -> ClusterView:
    insert_rows(
        connection, nodes, [(*own_row[:6], int(own_row.state), *own_row[7:])], replace_on=("node_id",)
    )
    return read_cluster(connection)


def read_nodes(connection: Connection) -> tuple[NodeRow, ...]:
    rows = connection.execute(select(nodes).order_by(nodes.c.node_id))
    return tuple(NodeRow(*row)._replace(state=NodeState(row.state)) for row in rows)


def read_cluster(connection: Connection) -> ClusterView:
    rows = read_nodes(connection)
    heads = connection.execute(
        select(
            shards.c.shard_id, shards.c.epoch, shards.c.owner, shards.c.last_seq, shards.c.observed_ms
        ).order_by(shards.c.shard_id)
    )
    return ClusterView(rows, tuple(ShardHead(*head) for head in heads))


def remove_nodes(connection: Connection, node_ids: Collection[str]) -> None:
    connection.execute(delete(nodes).where(nodes.c.node_id.in_(node_ids)))


def disown_shards(connection: Connection, owner: str, expected_epochs: Mapping[int, int]) -> None:
    connection.execute(
        update(shards)
        .where(
            shards.c.owner == owner,
            tuple_(shards.c.shard_id, shards.c.epoch).in_(list(expected_epochs.items())),
        )
        .values(owner="")
    )
