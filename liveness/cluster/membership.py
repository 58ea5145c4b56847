"""A node among others: it keeps its own lease in the registry, sees who else lives, and takes and hands over shards.

Where a shard belongs follows from who lives (`placement`). Two rules decide who acts:

- A living owner is never robbed. It sees by itself that a shard belongs elsewhere, and lets go of it.
- A shard that nobody living owns is taken by the node it belongs to.

Nodes that see things differently for a while cannot harm each other: taking a shard raises its epoch, and only if the
epoch is still the one that was seen; whoever had it before can commit nothing more to it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, NamedTuple

import structlog

from liveness.cluster.lookout import STEP_MS_MAX, Lookout
from liveness.cluster.peers import Peers
from liveness.cluster.placement import winner
from liveness.domain.errors import ShardMoved, ShardUnavailable, Unavailable
from liveness.frontend.routes import Member, Owner, Routes
from liveness.shard.node import NEVER_MS, Node
from liveness.shard.shard import Shard
from liveness.store.errors import CommitUnknown, StoreBroken, StoreError
from liveness.store.nodes import ClusterView, NodeRow, NodeState
from liveness.v1 import cluster_pb2

logger = structlog.get_logger("liveness.cluster")

LOOKS_PER_LEASE = 8
LOOK_EVERY_MS_MAX = STEP_MS_MAX // 2
"""Of what passes between two looks a step counts at most, so that a long lease with rare looks would hardly ever end."""
LOOK_AGAIN_MS_MIN = 50
"""Calls on their way to a node that is gone ask for another look all the time."""
TAKEN_AT_ONCE = 8
"""Shards in one transaction: while they are read, the process does little else, and must not miss its own beat."""
SURE_OF_LEASE = 0.9
"""Of its own lease, a node counts on this part only: clocks do not run at quite the same speed."""
HAND_OVER_MS_MAX = 5_000
FORGOTTEN_AFTER_MS = 600_000
"""A lost node is shown for so long."""


def look_every_ms(lease_ms: int) -> float:
    return min(lease_ms / LOOKS_PER_LEASE, LOOK_EVERY_MS_MAX)


class Plan(NamedTuple):
    """What follows from a look. Shards come with the epochs that they had."""

    take: dict[int, int]
    robbed: set[str]
    """Lost nodes, whose shards they were."""
    give: list[int]
    disown: dict[int, int]
    """Those that this node took and does not serve, and that belong elsewhere meanwhile: the answer was lost, or what
    came after it failed. Nobody takes them from a living owner."""


class Membership:
    def __init__(
        self, node: Node, routes: Routes, peers: Peers, mine: NodeRow, *, alone: bool, leased: bool = True
    ) -> None:
        """`alone`: nobody else can open the database. `leased`: the lease is renewed by `run`, so that the node cannot
        be sure of its shards when that does not succeed."""
        self._node = node
        self._clock = node.clock
        self._routes = routes
        self._peers = peers
        self._mine = mine
        self._alone = alone
        self._leased = leased
        if leased and not alone:
            node.sure_until_ms = lambda: self._sure_until_ms
        self._lookout = Lookout()
        self.lost: frozenset[str] = frozenset()
        """Nodes in the registry whose lease is over."""
        self.settled = False
        """Whether this node serves what belongs to it."""
        self.ready = False
        """Whether it has ever served what belongs to it, and is not about to leave. Who takes a dead node's shards serves
        its own meanwhile, and must not be taken out of service for it."""
        self.on_settled: Callable[[], None] = lambda: None
        """Told when that may have changed."""
        self._sure_until_ms = NEVER_MS
        self._looked_ms = 0
        self._places: dict[int, str | None] = {}
        """Where each shard belongs, among `_among`."""
        self._among: frozenset[str] = frozenset()
        self._again = asyncio.Event()
        self._looking = asyncio.Lock()
        self._work: set[asyncio.Task[None]] = set()
        node.on_opened.append(self._on_opened)
        node.on_robbed = self._on_robbed
        node.whereabouts = self._whereabouts

    @property
    def node_id(self) -> str:
        return self._mine.node_id

    # -- life

    async def join(self) -> None:
        """Take a place in the registry, and the shards that belong here and that nobody serves."""
        view = await self._node.store.look_at_cluster()
        others = [row for row in view.nodes if row.node_id != self.node_id]
        gone = [row for row in others if self._alone or self._is_gone(row)]
        if gone:
            await self._node.store.remove_nodes([row.node_id for row in gone])
        plan = await self._look()
        # Not beside everything else: a node that cannot read what it is to serve must not pretend to have started.
        await self._take(plan.take, plan.robbed)
        self._peers.tell_all(_members_changed)

    def _is_gone(self, row: NodeRow) -> bool:
        """A process of this machine that does not run any more need not be waited for."""
        if row.host != self._mine.host:
            return False
        if row.address == self._mine.address:
            return True
        try:
            os.kill(row.process_id, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return False

    async def run(self) -> None:
        """Keep the lease, and look around."""
        while True:
            await self._wait(look_every_ms(self._mine.lease_ms))
            if (early_ms := self._looked_ms + LOOK_AGAIN_MS_MIN - self._clock.monotonic_ms()) > 0:
                await self._clock.sleep(early_ms)
            try:
                await self.look()
            except StoreBroken as error:
                self._node.give_up(error)
                return
            except StoreError as error:
                logger.warning("cannot renew this node's lease", why=str(error))

    async def _wait(self, ms: float) -> None:
        again = asyncio.ensure_future(self._again.wait())
        timer = asyncio.ensure_future(self._clock.sleep(ms))
        try:
            await asyncio.wait((again, timer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            again.cancel()
            timer.cancel()

    def look_soon(self) -> None:
        """There is news."""
        self._again.set()

    async def leave(self) -> None:
        """Hand everything over to the others, if there are any, and wait until it is theirs."""
        self._mine = self._mine._replace(state=NodeState.LEAVING)
        self.settled = self.ready = False
        try:
            await self.look()
            self._peers.tell_all(_members_changed)
            if not any(self._places.values()):
                return
            await self._finished()
            if self._leased:
                await self._handed_over()
        except StoreError as error:
            logger.warning(
                "shards not handed over; others find them when this node's lease is over", why=str(error)
            )

    async def _handed_over(self) -> None:
        """Until every shard is known to be served elsewhere, for so long at most."""
        until_ms = self._clock.monotonic_ms() + HAND_OVER_MS_MAX
        while self._clock.monotonic_ms() < until_ms:
            owners = self._routes.owners().values()
            if sum(owner.node_id != self.node_id for owner in owners) == self._node.shard_count:
                return
            await self._routes.changed(self._clock, self._mine.lease_ms / LOOKS_PER_LEASE)
            await self.look()

    async def close(self) -> None:
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)

    async def sign_off(self) -> None:
        """Out of the registry, once everything was let go of."""
        try:
            await self._node.store.remove_nodes([self.node_id])
        except StoreError as error:
            logger.info("not signed off; the lease ends by itself", why=str(error))
        self._peers.tell_all(_members_changed)

    # -- looking

    async def look(self) -> None:
        """Renew the lease, see who is there, and begin what follows from it."""
        plan = await self._look()
        if plan.give:
            self._begin(self._hand_over(plan.give))
        if plan.take:
            self._begin(self._take(plan.take, plan.robbed))
        if plan.disown:
            self._begin(self._disown(plan.disown))
        forgotten = [id for id in self.lost if self._lookout.silent_ms(id) > FORGOTTEN_AFTER_MS]
        if forgotten:
            await self._node.store.remove_nodes(forgotten)

    async def _look(self) -> Plan:
        async with self._looking:
            self._again.clear()
            began_ms = self._clock.monotonic_ms()
            self._mine = self._mine._replace(beat=self._mine.beat + 1, renewed_wall_ms=self._clock.wall_ms())
            view = await self._node.store.renew_node(self._mine)
            self._looked_ms = self._clock.monotonic_ms()
            if not self._is_overtaken(view):
                self._sure_until_ms = began_ms + int(self._mine.lease_ms * SURE_OF_LEASE)
            others = [row for row in view.nodes if row.node_id != self.node_id]
            self._note_lost(self._lookout.look(others, began_ms, self._clock.monotonic_ms()))
            return self._conclude(view, [row for row in others if row.node_id not in self.lost])

    def _is_overtaken(self, view: ClusterView) -> bool:
        """Whether others have taken shards that this node still shows, while it stood still: a lease that is renewed
        afterwards does not bring them back, and until they are dropped, which a commit does, nothing is sure."""
        epochs = {head.shard_id: head.epoch for head in view.shards}
        return any(shard.epoch < epochs.get(shard.id, 0) for shard in self._node.shards())

    def _note_lost(self, lost: Collection[str]) -> None:
        for node_id in set(lost) - self.lost:
            logger.warning("node lost", node=node_id)
        for node_id in self.lost - set(lost):
            logger.info("node is back, or was forgotten", node=node_id)
        self.lost = frozenset(lost)

    def _conclude(self, view: ClusterView, others: Collection[NodeRow]) -> Plan:
        living = {row.node_id: row for row in (*others, self._mine)}
        self._peers.meet([row.address for row in others])
        self._node.observed_elsewhere = {head.shard_id: head.observed_ms for head in view.shards}
        self._routes.replace(
            [Member(row.node_id, row.address, row.state is NodeState.LEAVING) for row in living.values()],
            {head.shard_id: (head.owner, head.epoch) for head in view.shards},
        )
        self._place(frozenset(row.address for row in living.values() if row.state is NodeState.SERVING))
        plan = Plan({}, set(), [], {})
        for head in view.shards:
            shard_id = head.shard_id
            if shard_id in self._node.busy:
                continue
            place = self._places[shard_id]
            if self._node.serves(shard_id):
                if place is not None and place != self._mine.address:
                    plan.give.append(shard_id)
            elif place == self._mine.address and (head.owner == self.node_id or head.owner not in living):
                plan.take[shard_id] = head.epoch
                if head.owner and head.owner not in living:
                    plan.robbed.add(head.owner)
            elif head.owner == self.node_id:
                plan.disown[shard_id] = head.epoch
        self._settle()
        return plan

    def _settle(self) -> None:
        belongs = [shard_id for shard_id, place in self._places.items() if place == self._mine.address]
        before, self.settled = (
            self.settled,
            self._mine.state is NodeState.SERVING and all(map(self._node.serves, belongs)),
        )
        if self.settled != before:
            self.ready = self.ready or self.settled
            self.on_settled()

    def _place(self, among: frozenset[str]) -> None:
        if among != self._among or not self._places:
            self._among = among
            self._places = {shard_id: winner(shard_id, among) for shard_id in range(self._node.shard_count)}

    # -- taking and giving

    async def _take(self, wanted: Mapping[int, int], robbed: Collection[str]) -> None:
        if robbed:
            await self._cut_off(robbed)
        ids = sorted(wanted)
        at_once = len(ids) if self._alone else TAKEN_AT_ONCE
        for start in range(0, len(ids), at_once):
            some = {id: wanted[id] for id in ids[start : start + at_once]}
            taken = await self._node.open(some)
            if taken:
                logger.info("shards taken", shards=len(taken), first=taken[0].id)
                owned = [
                    cluster_pb2.ShardRoute(shard_id=shard.id, node_id=self.node_id, epoch=shard.epoch)
                    for shard in taken
                ]
                self._peers.tell_all(lambda message, owned=owned: message.owned.extend(owned))  # type: ignore[misc]
        self._settle()
        if ids:
            self.look_soon()

    async def _cut_off(self, owners: Collection[str]) -> None:
        """A node that stands still in the middle of a transaction holds on to the rows that others need, and there are
        places in it where no time limit of the database applies."""
        try:
            ended = await self._node.store.cut_off(owners)
        except StoreError as error:
            logger.warning("cannot end a lost node's database sessions", why=str(error))
        else:
            if ended:
                logger.info("database sessions of lost nodes ended", sessions=ended)

    async def _hand_over(self, shard_ids: Collection[int]) -> None:
        released = await self._node.release(shard_ids)
        for shard in released:
            self._routes.forget(shard.id, self.node_id)
        if released:
            logger.info("shards handed over", shards=len(released))
            ids = [shard.id for shard in released]
            self._peers.tell_all(lambda message: message.released.extend(ids))

    async def _disown(self, seen: Mapping[int, int]) -> None:
        await self._node.store.disown_shards(self.node_id, seen)
        logger.info("shards let go of that were taken without an answer", shards=len(seen))
        self._peers.tell_all(lambda message: message.released.extend(seen))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._guarded(work))
        self._work.add(task)
        self._node.supervise(task)
        task.add_done_callback(self._work.discard)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """What does not work out is seen, and begun anew, at the next look."""
        try:
            await work
        except StoreBroken as error:
            self._node.give_up(error)
        except StoreError as error:
            logger.warning("shards not taken", why=str(error))
            if isinstance(error, CommitUnknown):
                self.look_soon()  # which shows whether they were

    async def _finished(self) -> None:
        """Until what was begun has ended."""
        while self._work:
            await asyncio.gather(*self._work)

    def _on_opened(self, shard: Shard) -> None:
        """Calls that wait for it need not wait any longer."""
        self._routes.learn(shard.id, Owner(self.node_id, self._mine.address, shard.epoch))

    def _on_robbed(self, shard_ids: Collection[int]) -> None:
        logger.warning("shards are another node's now", shards=len(shard_ids))
        self.look_soon()

    def _whereabouts(self, shard_id: int) -> Unavailable:
        owner = self._routes.owner(shard_id)
        if owner is None or owner.node_id == self.node_id:
            return ShardUnavailable(shard_id=shard_id)
        return ShardMoved(shard_id=shard_id, node_id=owner.node_id, address=owner.address, epoch=owner.epoch)


def _members_changed(message: cluster_pb2.HintRequest) -> None:
    message.members_changed = True
