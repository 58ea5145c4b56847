"""The membership of this node in the cluster: it renews its lease in the registry, observes the other nodes, and takes and
hands over shards.

The live nodes determine where each shard belongs (`placement`). Two rules decide which node acts:

- No node takes a shard from a live owner. The owner sees that the shard is assigned to another node, and hands it over.
- A shard without a live owner is taken by the node that it is assigned to.

A node that cannot renew its lease before it ends is cut off: it gives up its shards, reports that it is not ready, and
forwards calls to the owners that other nodes name, until a renewal succeeds.

Nodes that see the cluster differently for a while cannot harm each other: taking a shard raises its epoch, and succeeds
only if the epoch is still the one that was seen; the former owner can commit nothing more to it.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, NamedTuple

import structlog

from liveness.background import BackgroundTasks, RepeatedWarning
from liveness.clock import wait_for_event, wait_or_timeout
from liveness.cluster.cluster_directory import ClusterDirectory
from liveness.cluster.failure_detector import STEP_MS_MAX, FailureDetector
from liveness.cluster.own_address import AddressTaken, OwnAddress
from liveness.cluster.own_lease import OwnLease
from liveness.cluster.peers import Peers
from liveness.cluster.placement import choose_node
from liveness.engine.listener import NodeListener
from liveness.engine.node import Node
from liveness.engine.shard import Shard
from liveness.routing.discovery import REFRESH_INTERVAL_MS, NodeRouteSource
from liveness.routing.routing_table import Member, Owner, RoutingTable
from liveness.store.errors import CommitUnknown, StoreBroken, StoreError, StoreUnusable
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
        on_cut_off: Callable[[], None] = lambda: None,
    ) -> None:
        """`directory`: kept up to date for the node. `is_single_node`: no other process can open the database.
        `renews_lease`: `run` renews the lease, so that the node cannot be sure of its shards when a renewal fails.
        `on_serving_changed`: called when `is_ready` may have changed. `on_cut_off`: called when this node has given up its
        shards because it could not renew its lease."""
        self._node = node
        self._clock = node.clock
        self._routes = routes
        self._peers = peers
        self._own_row = own_row
        self._is_single_node = is_single_node
        self._renews_lease = renews_lease
        self._directory = directory
        self._on_serving_changed = on_serving_changed
        self._on_cut_off = on_cut_off
        self._failure_detector = FailureDetector()
        self._own_address = OwnAddress(own_row.node_id, own_row.address, peers, self._clock)
        self._beats_at_own_address: dict[str, int] = {}
        """The first beat that was seen of each other node at this node's address."""
        self._rivals: set[str] = set()
        """The other nodes at this node's address that are alive."""
        self.address_taken: asyncio.Future[AddressTaken] = asyncio.get_running_loop().create_future()
        """Done when another node is alive at this node's address, and this node is the one that must stop."""
        self._own_lease = OwnLease(self._clock, own_row.lease_ms, refresh_interval_ms(own_row.lease_ms))
        self.lost: frozenset[str] = frozenset()
        """Ids of nodes in the registry whose lease is over."""
        self._registered: dict[str, str] = {}
        """The address of each other node in the registry, by id."""
        self._registered_addresses: tuple[str, ...] = ()
        """Addresses of all other nodes in the registry, lost ones too: those may have come back since."""
        self.is_fully_serving = False
        """Whether this node serves all shards that are assigned to it."""
        self._has_been_serving = False
        """Whether this node has ever served all its shards."""
        self._refreshed_ms = 0
        self.renewed_ms = 0
        """When this node last renewed its lease, by the monotonic clock."""
        self.renewal_failures = 0
        self.renewal_error = ""
        """Why the last renewal failed; empty if it did not."""
        self.node_counts: dict[str, int] = {}
        """Registered nodes by state, of the last refresh."""
        self._assignments: dict[int, str | None] = {}
        """The address that each shard is assigned to, among `_candidates`."""
        self._candidates: frozenset[str] = frozenset()
        self._refresh_requested = asyncio.Event()
        self._refresh_lock = asyncio.Lock()
        self._tasks = BackgroundTasks("membership", on_failure=node.fail)
        self._renewal_warning = RepeatedWarning(logger, "cannot renew this node's lease", node.clock)
        self._take_warning = RepeatedWarning(logger, "shards not taken", node.clock)

    @property
    def node_id(self) -> str:
        return self._own_row.node_id

    def is_registered(self, node_id: str, address: str) -> bool:
        """Whether the registry named another node with this id and address when it was last read."""
        return self._registered.get(node_id) == address

    @property
    def lease_ms(self) -> int:
        return self._own_row.lease_ms

    def shard_owners(self) -> Mapping[int, Owner]:
        return self._routes.owners()

    @property
    def is_ready(self) -> bool:
        """Whether this node has ever served all its shards, is not leaving and holds its lease. It stays ready while it
        takes the shards of a dead node: it serves its own meanwhile, and must not be taken out of service."""
        return (
            self._has_been_serving
            and self._own_row.state is NodeState.SERVING
            and not self._own_lease.is_over
        )

    @property
    def is_cut_off(self) -> bool:
        """Whether this node could not renew its lease in time, so that other nodes may own all its shards."""
        return self._own_lease.is_over

    # -- start and end

    async def join(self) -> None:
        """Register this node, and take the shards that are assigned to it and have no live owner."""
        view = await self._node.store.read_cluster()
        others = [row for row in view.nodes if row.node_id != self.node_id]
        exited = {row.node_id for row in others if self._is_single_node or self._has_exited(row)}
        here = self._own_address.others_here([row for row in others if row.node_id not in exited])
        if here:
            # Calls that arrive meanwhile are forwarded.
            self._update_routes(view, [row for row in others if row.node_id not in here.keys() | exited])
            await self._require_free_address(here)
            exited |= here.keys()
        if exited:
            await self._node.store.remove_nodes(sorted(exited))
        plan = await self._renew_and_plan()
        # Not in the background: a node that cannot read its shards must not report that it has started.
        await self._acquire(plan.to_acquire, plan.lost_owners)
        self._peers.broadcast_hint(_members_changed)

    def _has_exited(self, row: NodeRow) -> bool:
        """Whether a registered node is a process of this machine that has ended: its lease need not be waited for."""
        if not row.machine or row.machine != self._own_row.machine:
            return False
        try:
            os.kill(row.process_id, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return False

    async def _require_free_address(self, here: Mapping[str, NodeRow]) -> None:
        """Wait until the other nodes at this node's address have proved to be gone, or raise `AddressTaken`."""
        if self._renews_lease:
            interval_ms = max(refresh_interval_ms(row.lease_ms) for row in here.values())
            await self._own_address.require_free(here.values(), interval_ms, self._node.store.read_cluster)
        for id in here:
            logger.info("a node at this node's address is gone", node=id)

    def _watch_own_address(self, rows: Collection[NodeRow]) -> None:
        """Look for other nodes that joined at this node's address and are alive."""
        here = self._own_address.others_here(rows)
        self._beats_at_own_address = {
            id: self._beats_at_own_address.get(id, row.beat) for id, row in here.items()
        }
        self._rivals.intersection_update(here)
        for id, row in here.items():
            if row.beat != self._beats_at_own_address[id] and id not in self._rivals:
                self._rivals.add(id)
                self._start_task(self._settle_own_address(row))

    async def _settle_own_address(self, rival: NodeRow) -> None:
        """Let one of two living nodes with the same address stop: the one that the address does not lead to, or the one that
        started last, if it leads each of them to itself."""
        found = await self._own_address.node_that_answers() or self.node_id
        started_last = (self._own_row.started_wall_ms, self.node_id) > (rival.started_wall_ms, rival.node_id)
        if found == self.node_id and not started_last:
            logger.error(
                "another node gives out this node's address; set its --advertise", node=rival.node_id
            )
        elif not self.address_taken.done():
            taker = rival.node_id if found == self.node_id else found
            self.address_taken.set_result(AddressTaken(node_id=taker, address=rival.address))

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
                self._renewal_warning.warn(why=str(error))
            else:
                self._renewal_warning.resolve()

    def refresh_soon(self) -> None:
        """Request a refresh: something in the cluster has changed, or a node does not answer."""
        self._refresh_requested.set()

    async def leave(self) -> None:
        """Hand all shards over to other nodes, if there are any, and wait until those serve them."""
        self._own_row = self._own_row._replace(state=NodeState.LEAVING)
        self.is_fully_serving = False
        if self.is_cut_off:
            return  # it owns nothing, and cannot tell anyone through the database
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
        if self._own_row.beat == 0 or self.is_cut_off:
            return  # the start failed before the node registered itself, or its row counts no longer
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
            began_ms, report_count = self._clock.monotonic_ms(), self._routes.report_count
            self._own_row = self._own_row._replace(
                beat=self._own_row.beat + 1, renewed_wall_ms=self._clock.wall_ms()
            )
            try:
                view = await self._node.store.renew_node(self._own_row)
            except StoreError as error:
                self.renewal_failures += 1
                self.renewal_error = str(error)
                raise
            self._refreshed_ms = self.renewed_ms = self._clock.monotonic_ms()
            self.renewal_error = ""
            was_cut_off = self.is_cut_off
            self._own_lease.renew(began_ms)
            if view.unusable is not None:
                self._retire(view.unusable)
            if self._renews_lease and not self._is_single_node and not self._has_lost_shards(view):
                self._directory.lease_renewed(self._own_lease.until_ms(began_ms))
            others = [row for row in view.nodes if row.node_id != self.node_id]
            self._registered = {row.node_id: row.address for row in others}
            self._registered_addresses = tuple(
                dict.fromkeys(row.address for row in others if row.address != self._own_row.address)
            )
            self._record_lost_nodes(
                self._failure_detector.refresh(others, began_ms, self._clock.monotonic_ms())
            )
            if self.is_cut_off:  # the renewal took longer than the lease
                self.refresh_soon()
                return RebalancePlan({}, set(), [], {})
            if not self._is_single_node:
                self._watch_own_address([row for row in others if row.node_id not in self.lost])
            if was_cut_off:
                logger.info("lease renewed: the database can be reached again")
                self._on_serving_changed()
            return self._make_plan(
                view, [row for row in others if row.node_id not in self.lost], report_count
            )

    def _retire(self, why: StoreUnusable) -> None:
        """Leave the shards to other nodes: this one must not write to the database any more, and cannot serve again. It
        still forwards calls, and the registry shows it, until it is replaced."""
        if self._own_row.state is NodeState.LEAVING:
            return
        logger.error("this node can no longer serve", why=str(why))
        self._own_row = self._own_row._replace(state=NodeState.LEAVING)
        self.is_fully_serving = False
        self._on_serving_changed()
        self.refresh_soon()  # it tells the others

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

    def _make_plan(self, view: ClusterView, others: Collection[NodeRow], report_count: int) -> RebalancePlan:
        live_nodes = {row.node_id: row for row in (*others, self._own_row)}
        states = Counter(row.state for row in live_nodes.values())
        self.node_counts = {state.name: states[state] for state in NodeState} | {"LOST": len(self.lost)}
        self._peers.set_addresses([row.address for row in others])
        self._directory.set_observed_times({head.shard_id: head.observed_ms for head in view.shards})
        self._update_routes(view, live_nodes.values(), report_count)
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

    def _update_routes(
        self, view: ClusterView, live_nodes: Collection[NodeRow], report_count: int | None = None
    ) -> None:
        self._routes.replace(
            [Member(row.node_id, row.address, row.state is NodeState.LEAVING) for row in live_nodes],
            {head.shard_id: (head.owner, head.epoch) for head in view.shards},
            report_count,
        )

    def apply_owners(self, view: ClusterView, report_count: int) -> None:
        """Update the routes from a read of the registry between two refreshes. `report_count`: that of the routes when the
        read began. Which nodes are alive is left to the refreshes."""
        if not self.is_cut_off:
            self._routes.replace(
                self._routes.members(),
                {head.shard_id: (head.owner, head.epoch) for head in view.shards},
                report_count,
            )

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
            self._has_been_serving = self._has_been_serving or self.is_fully_serving
            self._on_serving_changed()

    def _assign_shards(self, candidates: frozenset[str]) -> None:
        if candidates != self._candidates or not self._assignments:
            self._candidates = candidates
            self._assignments = {
                shard_id: choose_node(shard_id, candidates) for shard_id in range(self._node.shard_count)
            }

    # -- cut off from the database

    async def watch_lease(self) -> None:
        """Give up all shards when this node's lease is over, and follow the other nodes until it is renewed."""
        while True:
            await self._own_lease.wait_until_over(self.refresh_soon)
            self._give_up_shards()
            await self._follow_other_nodes()

    def _give_up_shards(self) -> None:
        # First the routes, for the calls that go on when the shards close.
        others = [member for member in self._routes.members() if member.node_id != self.node_id]
        self._routes.replace(
            others,
            {
                shard_id: (owner.node_id, owner.epoch)
                for shard_id, owner in self._routes.owners().items()
                if owner.node_id != self.node_id
            },
        )
        self.is_fully_serving = False
        count = self._node.give_up_shards()
        logger.warning(
            "this node cannot renew its lease: it gives up its shards, and forwards calls to other nodes",
            shards=count,
            others=len(others),
        )
        self._on_serving_changed()
        self._on_cut_off()

    async def _follow_other_nodes(self) -> None:
        """Learn from other nodes which of them serves which shard, until this node's lease is renewed."""
        source = NodeRouteSource(
            self._registered_addresses,
            self._routes,
            self._clock,
            self._peers.connect,
            own_node_id=self.node_id,
        )
        renewed = asyncio.ensure_future(self._own_lease.wait_until_renewed())
        try:
            while not renewed.done():
                learning = asyncio.ensure_future(source.refresh())
                try:
                    await asyncio.wait((learning, renewed), return_when=asyncio.FIRST_COMPLETED)
                    if learning.done():
                        learning.result()
                finally:
                    learning.cancel()
                await wait_or_timeout(renewed, self._clock, REFRESH_INTERVAL_MS)
        finally:
            renewed.cancel()
            await source.close()
        self.refresh_soon()  # an answer that arrived last may have replaced what the registry says

    # -- take-over and hand-over

    async def _acquire(self, wanted: Mapping[int, int], lost_owners: Collection[str]) -> None:
        if lost_owners:
            await self._end_database_sessions(lost_owners)
        ids = sorted(wanted)
        batch_size = max(len(ids), 1) if self._is_single_node else ACQUIRE_BATCH_SIZE
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
            self._take_warning.resolve()
        except StoreBroken as error:
            self._node.abort(error)
        except StoreError as error:
            self._take_warning.warn(why=str(error))
            if isinstance(error, CommitUnknown):
                self.refresh_soon()  # it shows whether the shards were taken

    async def wait_for_rebalancing(self) -> None:
        """Wait until all shards that are being taken and handed over have been."""
        await self._tasks.wait()

    # -- as a listener of the node

    def shard_opened(self, shard: Shard) -> None:
        owner = Owner(self.node_id, self._own_row.address, shard.epoch)
        if not self._routes.update_owner(shard.id, owner):
            # The registry was read after the shard was taken and before it was opened: calls wait for this moment.
            self._routes.notify()

    def shards_lost(self, shard_ids: Collection[int]) -> None:
        logger.warning("another node has taken shards", shards=len(shard_ids))
        self.refresh_soon()


def _members_changed(message: cluster_pb2.HintRequest) -> None:
    message.members_changed = True
