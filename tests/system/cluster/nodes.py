"""Three nodes on one database, each a real process, and the faults of such nodes."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from random import Random
from signal import SIGCONT, SIGSTOP, SIGTERM
from typing import Any, TypeVar, cast

import grpc

from liveness.cluster.placement import choose_node
from liveness.v1 import admin_pb2, admin_pb2_grpc, service_pb2_grpc
from tests.free_ports import free_port
from tests.system.server.conftest import NO_CHECKPOINTS
from tests.system.server.server_process import ROUNDING_MS, ServerProcess

NODES = 3
SHARDS = 16
SHARE_MIN = 3
SECONDS_MAX = 60
CALL_SECONDS = 8
"""Longer than a node waits for another node that hangs."""
LOOK_SECONDS = 0.05
LEASE_MS = 1_500
"""The lease of a node, in tests that do not test the default."""
SHORT_NODE_LEASE = {
    **NO_CHECKPOINTS,
    "LIVENESS_NODE_LEASE_MS": str(LEASE_MS),
    "LIVENESS_TAKEOVER_GRACE_MS": "2000",
}
TRANSIENT_CODES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)

T = TypeVar("T")


async def eventually(ask: Callable[[], Awaitable[T]], wanted: Callable[[T], object]) -> T:
    """Ask until the answer is as wanted; repeat calls that fail temporarily."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SECONDS_MAX
    seen: object = None
    while True:
        try:
            seen = answer = await ask()
            if wanted(answer):
                return answer
        except grpc.aio.AioRpcError as error:
            if error.code() not in TRANSIENT_CODES:
                raise
            seen = error
        assert loop.time() < deadline, f"the wanted answer never came; the last one was {seen}"
        await asyncio.sleep(LOOK_SECONDS)


class Node(ServerProcess):
    """One address in the cluster, at which one process after another can run."""

    node_id = ""
    """Of the process that runs now, or ran last."""
    excluded = False
    """Whether calls that may go to any node avoid this one."""

    async def start(self) -> None:
        await super().start()
        answer = await self.admin.ListNodes(admin_pb2.ListNodesRequest())
        (self.node_id,) = (node.node_id for node in answer.nodes if node.answering)

    def _connect(self) -> None:
        super()._connect()
        self._cluster_channel = grpc.aio.insecure_channel(self.cluster_address)
        self.forwarded = service_pb2_grpc.LivenessServiceStub(self._cluster_channel)
        """For calls that another node would have forwarded."""

    async def disconnect(self) -> None:
        if self.address:
            await self._cluster_channel.close()
        await super().disconnect()

    @property
    def fixed_address(self) -> str:
        """Return its address, also while it is down."""
        return self.flags[1]

    @property
    def cluster_address(self) -> str:
        """Return the address at which other nodes and frontends call it."""
        return self.flags[3]

    def suspend(self) -> None:
        self.signal(SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        self.signal(SIGCONT)

    async def restart(self) -> None:
        """Restart it gracefully, at the same address."""
        assert await self.end(SIGTERM) == 0, self.log_text()
        await self.disconnect()
        await self.start()

    def has_logged(self, what: str) -> bool:
        return any(what in line for line in self.log)

    async def list_shards(self) -> dict[int, admin_pb2.Shard]:
        answer = await self.admin.ListShards(admin_pb2.ListShardsRequest(), timeout=CALL_SECONDS)
        return {shard.shard_id: shard for shard in answer.shards}

    async def list_nodes(self) -> dict[str, admin_pb2.Node]:
        answer = await self.admin.ListNodes(admin_pb2.ListNodesRequest(), timeout=CALL_SECONDS)
        return {node.node_id: node for node in answer.nodes}


def _addresses() -> list[str]:
    """Return free addresses such that each node gets a share: by chance, one of three nodes might get none of so few
    shards.
    """
    while True:
        addresses = [f"127.0.0.1:{free_port()}" for _ in range(NODES)]
        shares = Counter(choose_node(shard_id, frozenset(addresses)) for shard_id in range(SHARDS))
        if len(shares) == NODES and min(shares.values()) >= SHARE_MIN:
            return addresses


class Cluster:
    """A ledger and a load see the cluster as one server: each call goes to any node that is up."""

    def __init__(
        self,
        dbs: str | list[str],
        *,
        environ: Mapping[str, str] = SHORT_NODE_LEASE,
        skews_ms: Collection[int] = (0,) * NODES,
        seed: int = 1,
    ) -> None:
        """`dbs`: one database URL, or one for each node. `skews_ms`: the error of each node's wall clock."""
        ways = [dbs] * NODES if isinstance(dbs, str) else dbs
        self.nodes = [
            Node(
                way,
                shards=SHARDS,
                flags=("--listen", f"127.0.0.1:{free_port()}", "--cluster-listen", cluster_listen),
                environ={**environ, "SKEW_MS": str(skew_ms)},
                module="tests.system.cluster.skewed_node" if skew_ms else "liveness.cli",
            )
            for way, skew_ms, cluster_listen in zip(ways, skews_ms, _addresses(), strict=True)
        ]
        self._random = Random(seed)

    async def start(self) -> None:
        # The first node creates the tables.
        await self.nodes[0].start()
        await asyncio.gather(*(node.start() for node in self.nodes[1:]))
        await self.all_served()

    async def stop(self) -> None:
        """Stop all nodes gracefully, one after the other."""
        for node in self.nodes:
            if node.running:
                code = await node.end(SIGTERM)
                assert code == 0, f"{code}:\n{node.log_text()}"
                await node.disconnect()

    async def close(self) -> None:
        """Kill all nodes, however the test ended."""
        for node in self.nodes:
            await node.close()

    # -- the state of the whole cluster

    async def all_served(self, by: Collection[Node] | None = None) -> dict[int, admin_pb2.Shard]:
        """Wait until exactly these nodes serve shards, every shard is served, and each node knows it.

        Returns the shards.
        """
        owners = list(self.nodes if by is None else by)
        ids = {node.node_id for node in owners}

        async def look() -> list[dict[int, admin_pb2.Shard]]:
            return list(await asyncio.gather(*(node.list_shards() for node in owners)))

        def agreed(seen: list[dict[int, admin_pb2.Shard]]) -> bool:
            views = [{(id, shard.node_id, shard.epoch) for id, shard in shards.items()} for shards in seen]
            return (
                all(
                    len(shards) == SHARDS and all(shard.serving for shard in shards.values())
                    for shards in seen
                )
                and all({shard.node_id for shard in shards.values()} == ids for shards in seen)
                and all(view == views[0] for view in views)
            )

        try:
            return (await eventually(look, agreed))[0]
        except AssertionError as error:
            log_text = "\n".join(f"-- {node.node_id} logged:\n{node.log_text()}" for node in owners)
            raise AssertionError(f"{error}\n{log_text}") from None

    async def shards_of(self, node: Node) -> set[int]:
        return {id for id, shard in (await node.list_shards()).items() if shard.node_id == node.node_id}

    def others(self, node: Node) -> list[Node]:
        return [other for other in self.nodes if other is not node]

    # -- the cluster as one server

    @property
    def running(self) -> bool:
        return any(node.running for node in self.nodes)

    @property
    def liveness(self) -> service_pb2_grpc.LivenessServiceAsyncStub:
        return cast("service_pb2_grpc.LivenessServiceAsyncStub", _AnyNodeStub(self, "liveness"))

    @property
    def admin(self) -> admin_pb2_grpc.AdminServiceAsyncStub:
        return cast("admin_pb2_grpc.AdminServiceAsyncStub", _AnyNodeStub(self, "admin"))

    repeats_calls = True

    def listening_ms(self, since: float, until: float) -> float:
        return (until - since) * 1_000 + ROUNDING_MS

    def any_node(self) -> Node:
        up = [node for node in self.nodes if node.running and node.address and not node.excluded]
        return self._random.choice(up or self.nodes)

    @property
    def addresses(self) -> str:
        """Return the addresses in the form that the SDK takes."""
        return ",".join(node.fixed_address for node in self.nodes)


class _AnyNodeStub:
    """A stub each of whose calls goes to any node."""

    def __init__(self, cluster: Cluster, kind: str) -> None:
        self._cluster = cluster
        self._kind = kind

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        async def call(request: Any, timeout: float = SECONDS_MAX) -> Any:
            stub = getattr(self._cluster.any_node(), self._kind)
            return await getattr(stub, method)(request, timeout=timeout)

        return call
