"""The membership of this node in the cluster: it renews its lease in the registry, observes the other nodes, and takes and
hands over shards.

The live nodes determine where each shard belongs (`placement`). Two rules decide which node acts:

- No node takes a shard from a live owner. The owner sees that the shard is assigned to another node, and hands it over.
- A shard without a live owner is taken by the node that it is assigned to.

Nodes that see the cluster differently for a while cannot harm each other: taking a shard raises its epoch, and succeeds
only if the epoch is still the one that was seen; the former owner can commit nothing more to it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, NamedTuple

import structlog

from liveness.background import BackgroundTasks
from liveness.clock import wait_for_event
from liveness.cluster.cluster_directory import ClusterDirectory
from liveness.cluster.failure_detector import STEP_MS_MAX, FailureDetector
from liveness.cluster.peers import Peers
from liveness.cluster.placement import choose_node
from liveness.engine.listener import NodeListener
from liveness.engine.node import Node
from liveness.engine.shard import Shard
from liveness.routing.routing_table import Member, Owner, RoutingTable
from liveness.store.errors import CommitUnknown, StoreBroken, StoreError
from liveness.store.node_registry import ClusterView, NodeRow, NodeState
from liveness.v1 import cluster_pb2

logger = structlog.get_logger("liveness.cluster")

REFRESHES_PER_LEASE = 8
REFRESH_INTERVAL_MS_MAX = STEP_MS_MAX // 2
"""Silence counts for at most one step between two refreshes, so with rarer ones a long lease would hardly ever end."""
REFRESH_GAP_MS_MIN = 50
"""The minimum time between two refreshes: calls to a node that is gone request refreshes all the time."""
ACQUIRE_BATCH_SIZE = 8
"""Shards per transaction: the process does little else while it reads them, and must not miss its own renewal."""
LEASE_SAFETY_FACTOR = 0.9
"""The part of its own lease that a node relies on: clocks do not run at quite the same speed."""
HAND_OVER_TIMEOUT_MS = 5_000
LOST_NODE_RETENTION_MS = 600_000
"""How long the registry shows a lost node."""


def refresh_interval_ms(lease_ms: int) -> float:
    return min(lease_ms / REFRESHES_PER_LEASE, REFRESH_INTERVAL_MS_MAX)


class RebalancePlan(NamedTuple):
    """The actions of this node after a refresh. Shards come with the epochs that the refresh showed."""

    to_acquire: dict[int, int]
    lost_owners: set[str]
    """Lost nodes that owned these shards."""
    to_hand_over: list[int]
    to_disown: dict[int, int]
    """Shards that this node owns but does not serve, and that are assigned to another node: the answer to the take-over was
    lost, or a later step failed. The other node does not take them from a live owner, so this one gives them up."""


class Membership(NodeListener):
    def __init__(
        self,
        node: Node,
        routes: RoutingTable,
        peers: Peers,
        directory: ClusterDirectory,
        own_row: NodeRow,
        *,
        is_single_node: bool,
        renews_lease: bool = True,
        on_serving_changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`directory`: kept up to date for the node. `is_single_node`: no other process can open the database.
        `renews_lease`: `run` renews the lease, so that the node cannot be sure of its shards when a renewal fails.
        `on_serving_changed`: called when `is_ready` may have changed."""
        self._node = node
        self._clock = node.clock
        self._routes = routes
        self._peers = peers
        self._own_row = own_row
        self._is_single_node = is_single_node
        self._renews_lease = renews_lease
        self._directory = directory
        self._on_serving_changed = on_serving_changed
        self._failure_detector = FailureDetector()
        self.lost: frozenset[str] = frozenset()
        """Ids of nodes in the registry whose lease is over."""
        self.is_fully_serving = False
        """Whether this node serves all shards that are assigned to it."""
        self.is_ready = False
        """Whether this node has ever served all its shards and is not leaving. It stays ready while it takes the shards of
        a dead node: it serves its own meanwhile, and must not be taken out of service."""
        self._refreshed_ms = 0
        self._assignments: dict[int, str | None] = {}
        """The address that each shard is assigned to, among `_candidates`."""
        self._candidates: frozenset[str] = frozenset()
        self._refresh_requested = asyncio.Event()
        self._refresh_lock = asyncio.Lock()
        self._tasks = BackgroundTasks("membership", on_failure=node.fail)

    @property
    def node_id(self) -> str:
        return self._own_row.node_id

    # -- start and end

    async def join(self) -> None:
        """Register this node, and take the shards that are assigned to it and have no live owner."""
        view = await self._node.store.read_cluster()
        others = [row for row in view.nodes if row.node_id != self.node_id]
        exited = [row for row in others if self._is_single_node or self._has_exited(row)]
        if exited:
            await self._node.store.remove_nodes([row.node_id for row in exited])
        plan = await self._renew_and_plan()
        # Not in the background: a node that cannot read its shards must not report that it has started.
        await self._acquire(plan.to_acquire, plan.lost_owners)
        self._peers.broadcast_hint(_members_changed)

    def _has_exited(self, row: NodeRow) -> bool:
        """Whether a registered node is a process of this machine that has ended: its lease need not be waited for."""
        if row.host != self._own_row.host:
            return False
        if row.address == self._own_row.address:
            return True
        try:
            os.kill(row.process_id, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return False

    async def run(self) -> None:
        """Renew the lease and observe the cluster, at regular intervals and on request."""
        while True:
            interval_ms = refresh_interval_ms(self._own_row.lease_ms)
            await wait_for_event(self._refresh_requested, self._clock, interval_ms)
            if (too_early_ms := self._refreshed_ms + REFRESH_GAP_MS_MIN - self._clock.monotonic_ms()) > 0:
                await self._clock.sleep(too_early_ms)
            try:
                await self.refresh()
            except StoreBroken as error:
                self._node.abort(error)
                return
            except StoreError as error:
                logger.warning("cannot renew this node's lease", why=str(error))

    def refresh_soon(self) -> None:
        """Request a refresh: something in the cluster has changed, or a node does not answer."""
        self._refresh_requested.set()

    async def leave(self) -> None:
        """Hand all shards over to other nodes, if there are any, and wait until those serve them."""
        self._own_row = self._own_row._replace(state=NodeState.LEAVING)
        self.is_fully_serving = self.is_ready = False
        try:
            await self.refresh()
            self._peers.broadcast_hint(_members_changed)
            if not any(self._assignments.values()):
                return
            await self.wait_for_rebalancing()
            if self._renews_lease:
                await self._wait_until_handed_over()
        except StoreError as error:
            logger.warning(
                "shards not handed over; other nodes take them when this node's lease is over", why=str(error)
            )

    async def _wait_until_handed_over(self) -> None:
        """Wait until other nodes serve all shards, for `HAND_OVER_TIMEOUT_MS` at most."""
        until_ms = self._clock.monotonic_ms() + HAND_OVER_TIMEOUT_MS
        while self._clock.monotonic_ms() < until_ms:
            owners = self._routes.owners().values()
            if sum(owner.node_id != self.node_id for owner in owners) == self._node.shard_count:
                return
            await self._routes.wait_for_change(self._clock, self._own_row.lease_ms / REFRESHES_PER_LEASE)
            await self.refresh()

    async def close(self) -> None:
        await self._tasks.close()

    async def deregister(self) -> None:
        """Remove this node from the registry, once it owns nothing any more."""
        if self._own_row.beat == 0:
            return  # the start failed before the node registered itself
        try:
            await self._node.store.remove_nodes([self.node_id])
        except StoreError as error:
            logger.info("node not deregistered; its lease will run out", why=str(error))
        self._peers.broadcast_hint(_members_changed)

    # -- refresh

    async def refresh(self) -> None:
        """Renew the lease, read the registry, and start to take and hand over shards accordingly."""
        plan = await self._renew_and_plan()
        if plan.to_hand_over:
            self._start_task(self._hand_over(plan.to_hand_over))
        if plan.to_acquire:
            self._start_task(self._acquire(plan.to_acquire, plan.lost_owners))
        if plan.to_disown:
            self._start_task(self._disown_shards(plan.to_disown))
        forgotten = [id for id in self.lost if self._failure_detector.silent_ms(id) > LOST_NODE_RETENTION_MS]
        if forgotten:
            await self._node.store.remove_nodes(forgotten)

    async def _renew_and_plan(self) -> RebalancePlan:
        async with self._refresh_lock:
            self._refresh_requested.clear()
            began_ms = self._clock.monotonic_ms()
            self._own_row = self._own_row._replace(
                beat=self._own_row.beat + 1, renewed_wall_ms=self._clock.wall_ms()
            )
            view = await self._node.store.renew_node(self._own_row)
            self._refreshed_ms = self._clock.monotonic_ms()
            if self._renews_lease and not self._is_single_node and not self._has_lost_shards(view):
                self._directory.lease_renewed(began_ms + int(self._own_row.lease_ms * LEASE_SAFETY_FACTOR))
            others = [row for row in view.nodes if row.node_id != self.node_id]
            self._record_lost_nodes(
                self._failure_detector.refresh(others, began_ms, self._clock.monotonic_ms())
            )
            return self._make_plan(view, [row for row in others if row.node_id not in self.lost])

    def _has_lost_shards(self, view: ClusterView) -> bool:
        """Whether other nodes have taken shards that this node still serves, for instance while its process stalled. A
        lease that is renewed afterwards does not bring them back: until a commit has dropped them, this node must not
        rely on the lease."""
        epochs = {head.shard_id: head.epoch for head in view.shards}
        return any(shard.epoch < epochs.get(shard.id, 0) for shard in self._node.shards())

    def _record_lost_nodes(self, lost: Collection[str]) -> None:
        for node_id in set(lost) - self.lost:
            logger.warning("node lost", node=node_id)
        for node_id in self.lost - set(lost):
            logger.info("node is back, or was removed from the registry", node=node_id)
        self.lost = frozenset(lost)

    def _make_plan(self, view: ClusterView, others: Collection[NodeRow]) -> RebalancePlan:
        live_nodes = {row.node_id: row for row in (*others, self._own_row)}
        self._peers.set_addresses([row.address for row in others])
        self._directory.set_observed_times({head.shard_id: head.observed_ms for head in view.shards})
        self._routes.replace(
            [Member(row.node_id, row.address, row.state is NodeState.LEAVING) for row in live_nodes.values()],
            {head.shard_id: (head.owner, head.epoch) for head in view.shards},
        )
        self._assign_shards(
            frozenset(row.address for row in live_nodes.values() if row.state is NodeState.SERVING)
        )
        plan = RebalancePlan({}, set(), [], {})
        for head in view.shards:
            shard_id = head.shard_id
            if shard_id in self._node.shards_in_transition:
                continue
            assigned_address = self._assignments[shard_id]
            if self._node.serves(shard_id):
                if assigned_address is not None and assigned_address != self._own_row.address:
                    plan.to_hand_over.append(shard_id)
            elif assigned_address == self._own_row.address and (
                head.owner == self.node_id or head.owner not in live_nodes
            ):
                plan.to_acquire[shard_id] = head.epoch
                if head.owner and head.owner not in live_nodes:
                    plan.lost_owners.add(head.owner)
            elif head.owner == self.node_id:
                plan.to_disown[shard_id] = head.epoch
        self._update_serving()
        return plan

    def _update_serving(self) -> None:
        assigned = [
            shard_id
            for shard_id, assigned_address in self._assignments.items()
            if assigned_address == self._own_row.address
        ]
        before, self.is_fully_serving = (
            self.is_fully_serving,
            self._own_row.state is NodeState.SERVING and all(map(self._node.serves, assigned)),
        )
        if self.is_fully_serving != before:
            self.is_ready = self.is_ready or self.is_fully_serving
            self._on_serving_changed()

    def _assign_shards(self, candidates: frozenset[str]) -> None:
        if candidates != self._candidates or not self._assignments:
            self._candidates = candidates
            self._assignments = {
                shard_id: choose_node(shard_id, candidates) for shard_id in range(self._node.shard_count)
            }

    # -- take-over and hand-over

    async def _acquire(self, wanted: Mapping[int, int], lost_owners: Collection[str]) -> None:
        if lost_owners:
            await self._end_database_sessions(lost_owners)
        ids = sorted(wanted)
        batch_size = len(ids) if self._is_single_node else ACQUIRE_BATCH_SIZE
        for start in range(0, len(ids), batch_size):
            batch = {id: wanted[id] for id in ids[start : start + batch_size]}
            taken = await self._node.open(batch)
            if taken:
                logger.info("shards taken", shards=len(taken), first=taken[0].id)
                owned = [
                    cluster_pb2.ShardRoute(shard_id=shard.id, node_id=self.node_id, epoch=shard.epoch)
                    for shard in taken
                ]
                self._peers.broadcast_hint(lambda message, owned=owned: message.owned.extend(owned))  # type: ignore[misc]
        self._update_serving()
        if ids:
            self.refresh_soon()

    async def _end_database_sessions(self, owners: Collection[str]) -> None:
        """End the database sessions of lost nodes. A node that stalls in the middle of a transaction keeps its locks on rows
        that others need, and in some states of a transaction no time limit of the database applies."""
        try:
            ended = await self._node.store.end_sessions_of(owners)
        except StoreError as error:
            logger.warning("cannot end a lost node's database sessions", why=str(error))
        else:
            if ended:
                logger.info("database sessions of lost nodes ended", sessions=ended)

    async def _hand_over(self, shard_ids: Collection[int]) -> None:
        released = await self._node.hand_over(shard_ids)
        for shard in released:
            self._routes.clear_owner(shard.id, self.node_id)
        if released:
            logger.info("shards handed over", shards=len(released))
            ids = [shard.id for shard in released]
            self._peers.broadcast_hint(lambda message: message.released.extend(ids))

    async def _disown_shards(self, expected_epochs: Mapping[int, int]) -> None:
        await self._node.store.disown_shards(self.node_id, expected_epochs)
        logger.info("shards given up that were taken without an answer", shards=len(expected_epochs))
        self._peers.broadcast_hint(lambda message: message.released.extend(expected_epochs))

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.start(self._run_logging_errors(work))

    async def _run_logging_errors(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` and log its failure. The next refresh shows what was not done, and starts it again."""
        try:
            await work
        except StoreBroken as error:
            self._node.abort(error)
        except StoreError as error:
            logger.warning("shards not taken", why=str(error))
            if isinstance(error, CommitUnknown):
                self.refresh_soon()  # it shows whether the shards were taken

    async def wait_for_rebalancing(self) -> None:
        """Wait until all shards that are being taken and handed over have been."""
        await self._tasks.wait()

    # -- as a listener of the node

    def shard_opened(self, shard: Shard) -> None:
        self._routes.update_owner(shard.id, Owner(self.node_id, self._own_row.address, shard.epoch))

    def shards_lost(self, shard_ids: Collection[int]) -> None:
        logger.warning("another node has taken shards", shards=len(shard_ids))
        self.refresh_soon()


def _members_changed(message: cluster_pb2.HintRequest) -> None:
    message.members_changed = True
