"""Real clusters to measure: node processes on one PostgreSQL that syncs its commits, each cluster in its own database."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import grpc

from bench.messages import NAMESPACE, heartbeat, unary_request
from bench.servers import processor_s, server_process
from liveness.domain.keys import shard_of
from liveness.v1 import admin_pb2, cluster_pb2
from liveness.v1.admin_pb2_grpc import AdminServiceStub
from liveness.v1.cluster_pb2_grpc import ClusterServiceStub

SETTLED_SECONDS_MAX = 60


@cache
def cluster_address(address):
    """Return where other nodes call the node that listens there for clients."""
    with grpc.insecure_channel(address) as channel:
        answer = AdminServiceStub(channel).ListNodes(admin_pb2.ListNodesRequest(), timeout=5)
    (found,) = (node.address for node in answer.nodes if node.answering)
    return found


class Cluster:
    def __init__(self, name, url, nodes, shards):
        self.name, self.url, self.nodes, self.shards = name, url, nodes, shards
        self.frontends = {}

    def routes(self, address=None):
        """Return shard -> address of its owner, as one of the nodes knows it."""
        with grpc.insecure_channel(cluster_address(address or self.nodes[0].address)) as channel:
            answer = ClusterServiceStub(channel).GetRoutes(cluster_pb2.GetRoutesRequest(), timeout=5)
        public = {cluster_address(node.address): node.address for node in self.nodes}
        address_by_node = {member.node_id: public.get(member.address, "") for member in answer.nodes}
        return {
            route.shard_id: address_by_node[route.node_id]
            for route in answer.shards
            if route.node_id in address_by_node
        }

    def wait_until_settled(self):
        """Wait until every node knows an owner for every shard, and each node owns some."""
        until = time.monotonic() + SETTLED_SECONDS_MAX
        addresses = {node.address for node in self.nodes}
        while time.monotonic() < until:
            seen = [self.routes(node.address) for node in self.nodes]
            if all(len(s) == self.shards and set(s.values()) == addresses and s == seen[0] for s in seen):
                return
            time.sleep(0.1)  # there is no notification to wait for
        raise SystemExit(f"{self.name} did not settle")

    def workers(self, first, count, address=None):
        """Return numbers of workers, of one node's shards or of any."""
        owners = self.routes()
        found: list[int] = []
        number = first
        while len(found) < count:
            owner = owners[shard_of(NAMESPACE, heartbeat(number).worker_instance_key, self.shards)]
            if address in (None, owner):
                found.append(number)
            number += 1
        return found


@contextmanager
def cluster(name, postgres, count, shards=64):
    url = postgres.url(postgres.create_database())
    with ExitStack() as stack:
        # The first node creates the tables. The nodes start one after another, as in a rolling start.
        nodes = [
            stack.enter_context(
                server_process(f"node {number}", "bench.liveness_server", url, f"shards={shards}")
            )
            for number in range(count)
        ]
        made = Cluster(name, url, nodes, shards)
        made.wait_until_settled()
        yield made


@contextmanager
def frontend(cluster, how):
    with server_process(how, "bench.frontend_server", cluster.url, how) as process:
        asyncio.run(_ready(process.address))
        yield process


async def _ready(address):
    """Wait until the frontend knows the nodes and can forward a call."""
    until = time.monotonic() + SETTLED_SECONDS_MAX
    async with grpc.aio.insecure_channel(address) as channel:
        call: Any = channel.unary_unary("/liveness.v1.LivenessService/RecordWorkerHeartbeat")
        while True:
            try:
                await call(unary_request(999_999), timeout=20)
                return
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE or time.monotonic() > until:
                    raise
                await asyncio.sleep(0.1)


class PostgresProcesses:
    """Processor time of all PostgreSQL processes."""

    def __init__(self, postgres):
        said = postgres.execute("SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)")
        self._postgres, self._pid = postgres, int(said)

    def cpu_s(self):
        own = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        ended = (int(own[13]) + int(own[14])) / 100  # children that have ended
        children = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text().split()
        return sum((processor_s(pid) or 0) for pid in (self._pid, *children)) + ended

    def wal_bytes(self):
        return int(self._postgres.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))
