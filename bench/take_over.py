"""How long a node's shards are unavailable after `kill -9` and after a graceful stop.

Every shard of the ending node has a worker, whose heartbeats go to a node that stays. The clock starts with the
signal. The figure for clients is the longest wait of one of those heartbeats for its answer.
"""

from __future__ import annotations

import asyncio
import signal
import statistics
import time
from typing import Any

import grpc

from bench.cluster_processes import cluster, cluster_address
from bench.messages import NAMESPACE, heartbeat, unary_request
from bench.rounds import print_progress, rounded, row
from liveness.domain.keys import shard_of
from liveness.v1 import cluster_pb2
from liveness.v1.cluster_pb2_grpc import ClusterServiceStub
from tests.databases import PostgresServer

SHARDS = (16, 64, 256)
NODES = 3
HOW = {"kill -9": signal.SIGKILL, "graceful stop": signal.SIGTERM}
BEAT_EVERY_S = 0.25
BETWEEN_TRIES_S = 0.05
SECONDS_MAX = 60


def worker_of_each(shards):
    """Return shard -> number of a worker on it."""
    found: dict[int, int] = {}
    number = 0
    while len(found) < len(shards):
        shard_id = shard_of(NAMESPACE, heartbeat(number).worker_instance_key, shards.stop)
        if shard_id in shards:
            found.setdefault(shard_id, number)
        number += 1
    return found


class TakeOverProbe:
    def __init__(self, address, gone, shards, numbers):
        self._channel = grpc.aio.insecure_channel(address)
        self._gone, self._shards, self._numbers = cluster_address(gone), shards, numbers
        self._cluster_channel = grpc.aio.insecure_channel(cluster_address(address))
        self.longest_s = 0.0
        self._call: Any = self._channel.unary_unary("/liveness.v1.LivenessService/RecordWorkerHeartbeat")
        self._routes = ClusterServiceStub(self._cluster_channel)

    async def measure(self, leave):
        """Return the seconds from the signal until other nodes serve every shard, and the longest wait of one heartbeat."""
        for number in self._numbers:
            await self._call(unary_request(number), timeout=20)
        done = asyncio.Event()
        beating = [asyncio.create_task(self._beat(number, done)) for number in self._numbers]
        await asyncio.sleep(BEAT_EVERY_S)
        start = time.perf_counter()
        leave()
        await self._wait_until_moved(start)
        # A known owner may not serve yet: each shard must have answered from its new owner.
        done.set()
        await asyncio.gather(*beating)
        took = time.perf_counter() - start
        await self._channel.close()
        await self._cluster_channel.close()
        return took, self.longest_s

    async def _wait_until_moved(self, start):
        while time.perf_counter() - start < SECONDS_MAX:
            known = await self._routes.GetRoutes(cluster_pb2.GetRoutesRequest(), timeout=5)
            address_by_node = {member.node_id: member.address for member in known.nodes}
            owners = [address_by_node.get(route.node_id, "") for route in known.shards]
            if sum(owner not in ("", self._gone) for owner in owners) == self._shards:
                return
            await asyncio.sleep(0.01)
        raise SystemExit(f"shards were not served again within {SECONDS_MAX} s")

    async def _beat(self, number, done):
        body = unary_request(number)
        while True:
            last = done.is_set()
            began = time.perf_counter()
            while True:
                try:
                    await self._call(body, timeout=SECONDS_MAX)
                    break
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.UNAVAILABLE:
                        raise
                    await asyncio.sleep(BETWEEN_TRIES_S)
            self.longest_s = max(self.longest_s, time.perf_counter() - began)
            if last:
                return
            try:
                await asyncio.wait_for(done.wait(), BEAT_EVERY_S)
            except TimeoutError:
                pass


def measure_once(postgres, how, shards):
    with cluster(f"{shards} shards", postgres, NODES, shards) as made:
        going, staying = made.nodes[-1], made.nodes[0]
        theirs = {id for id, address in made.routes().items() if address == going.address}
        numbers = [number for id, number in worker_of_each(range(shards)).items() if id in theirs]

        async def watch():
            probe = TakeOverProbe(staying.address, going.address, shards, numbers)
            return await probe.measure(lambda: going.process.send_signal(HOW[how]))

        took, longest = asyncio.run(watch())
        return took, longest, len(theirs)


def row_name(how, shards):
    return f"take-over: {how}, {shards} shards on {NODES} nodes"


NAMES = {
    row_name(how, shards): f"seconds until another node serves every shard, against {SHARDS[0]} shards"
    for shards in SHARDS
    for how in HOW
}


def measure(plan):
    found: dict[tuple[str, int], list[tuple[float, float, int]]] = {}
    with PostgresServer(fsync=True) as postgres:
        times = max(1, round(plan.few_rounds * min(plan.scale, 1)))
        for number in range(times):
            for shards in SHARDS:
                for how in HOW:
                    found.setdefault((how, shards), []).append(measure_once(postgres, how, shards))
            print_progress(f"take-over: round {number + 1} of {times}")
    for (how, shards), runs in found.items():
        took, longest, moved = zip(*runs, strict=True)
        base = [run[0] for run in found[how, SHARDS[0]]]
        mine, other = f"{shards} shards", f"{SHARDS[0]} shards"
        yield row(
            row_name(how, shards),
            "s",
            {mine: took, other: base},
            mine,
            other,
            notes=["a node's lease is 4 s; each shard has a worker that heartbeats all the while"],
            more={
                "shards moved": rounded(statistics.mean(moved)),
                "longest wait of a heartbeat, s": rounded(max(longest)),
            },
        )
