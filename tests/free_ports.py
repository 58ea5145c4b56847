"""Ports for servers that must know their address before they start."""

from __future__ import annotations

import os
import socket
from itertools import count
from random import Random

from liveness.cluster.placement import rendezvous_weight

PORTS = (20_000, 32_000)
"""Below the range from which the system assigns ports, so that no connection takes one between here and the server."""
WEIGHTS = 1 << 64
NODES_MAX = 4
PROCESSES_MAX = 8
"""Test processes that run at the same time. Each has ports of its own: no other takes one before its server listens."""
_process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % PROCESSES_MAX
_nodes = count()


def free_port() -> int:
    random = Random()
    while True:
        port = random.randrange(PORTS[0] + _process, PORTS[1], PROCESSES_MAX)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def next_node_port() -> int:
    """Return a free port for the next node.

    Each of up to `NODES_MAX` nodes that got their ports one after the other is assigned one of the first shards. With ports
    by chance, one of two nodes gets none of 8 shards in one of 128 tries.
    """
    own_shard = next(_nodes) % NODES_MAX
    while True:
        port = free_port()
        weights = [rendezvous_weight(f"127.0.0.1:{port}", shard_id) for shard_id in range(NODES_MAX)]
        others = weights[:own_shard] + weights[own_shard + 1 :]
        if weights[own_shard] > 0.95 * WEIGHTS > 0.9 * WEIGHTS > max(others):
            return port
