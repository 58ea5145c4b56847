"""Brings available activities and waiting workers together, the moment both are there.

Everything here is derived: what is available is in the activities table and in the shards' memory, and this index of it
is filled from there whenever a shard is opened and kept by each commit. What waits is open polls. A match is made in
turns, one task queue after the other, so that a queue with a hundred thousand activities holds up none with one.

Polls wait at the node that serves their worker. Where an activity waits at another node, that node says so, and a poll
that finds nothing here fetches it from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from math import ceil
from typing import Any

import structlog

from liveness.domain import orders
from liveness.domain.activity import Activity, ActivityState
from liveness.domain.activity_decider import holder_of
from liveness.domain.errors import InvalidField, LivenessError, ShuttingDown, TooManyPolls, Unavailable
from liveness.domain.events import BindingsChanged, BindingsEnded
from liveness.domain.keys import ActivityKey, WorkerKey, shard_of
from liveness.domain.worker import Worker
from liveness.shard.custody import Custody
from liveness.shard.homes import Elsewhere
from liveness.shard.node import Node
from liveness.shard.shard import HandedOver, Shard

logger = structlog.get_logger("liveness.matching")

POLLS_PER_WORKER_MAX = 1_000
ANNOUNCED_MAX = 1_000
FETCHES_MAX = 8
"""So many polls of a queue ask other nodes at a time."""
MATCHES_PER_TURN = 100
"""After so many, calls that came in meanwhile get their turn."""

QueueKey = tuple[str, str]


class Poll:
    """A worker that waits for activities."""

    __slots__ = ("answered", "fetching", "limit", "queue", "session_id", "taken", "worker")

    def __init__(self, queue: QueueKey, worker: WorkerKey, session_id: str, limit: int) -> None:
        self.queue = queue
        self.worker = worker
        self.session_id = session_id
        self.limit = limit
        self.taken: list[tuple[ActivityKey, Activity]] = []
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.fetching = False
        """It asks another node."""

    def refuse(self, error: LivenessError) -> None:
        if not self.answered.done():
            self.answered.set_exception(error)


class TaskQueue:
    """Of one namespace: what is available, and who waits for it, each in order of arrival."""

    __slots__ = ("elsewhere", "fetches", "offers", "polls")

    def __init__(self) -> None:
        self.offers: dict[ActivityKey, None] = {}
        self.polls: dict[Poll, None] = {}
        self.elsewhere: dict[str, None] = {}
        """Addresses of nodes that said that they have some."""
        self.fetches = 0
        """Polls that are asking one of them."""

    @property
    def is_idle(self) -> bool:
        return not self.offers and not self.polls and not self.elsewhere


class Matching:
    def __init__(
        self,
        node: Node,
        custody: Custody,
        elsewhere: Elsewhere | None = None,
        announce: Callable[[Collection[QueueKey]], None] = lambda queues: None,
    ) -> None:
        """`announce`: tells other nodes in which queues activities wait here."""
        self._node = node
        self._custody = custody
        self._elsewhere = elsewhere
        self._announce = announce
        self._fetches: set[asyncio.Task[None]] = set()
        self._queues: dict[QueueKey, TaskQueue] = {}
        self._polls: dict[WorkerKey, set[Poll]] = {}
        self._ready: dict[QueueKey, None] = {}
        """Queues that may have a match, next one first."""
        self._turn: asyncio.Handle | None = None
        self._closed = False
        node.on_opened.append(self._on_opened)
        node.on_closed.append(self._on_closed)
        node.on_committed.append(self._on_committed)
        node.on_policy.append(self.look_again_everywhere)

    # -- what is available

    def _on_opened(self, shard: Shard) -> None:
        waiting = [
            (activity.since_ms, key, activity.task_queue)
            for key, activity in shard.activities.items()
            if activity.state is ActivityState.AVAILABLE
        ]
        for _, key, task_queue in sorted(waiting):
            self._offer(key, task_queue)

    def _on_closed(self, shard: Shard) -> None:
        """What waits there waits at another node; and so do, from now on, those whose worker lived there."""
        for name, queue in tuple(self._queues.items()):
            for key in [key for key in queue.offers if self._shard_id(key) == shard.id]:
                del queue.offers[key]
            if queue.is_idle:
                del self._queues[name]
        for worker_key in tuple(self._polls):
            if shard_of(*worker_key, self._node.shard_count) == shard.id:
                self._look_again(worker_key)

    def _shard_id(self, key: ActivityKey) -> int:
        return shard_of(key.namespace, key.workflow_id, self._node.shard_count)

    def _on_committed(self, handed: Sequence[HandedOver]) -> None:
        for part in handed:
            for key, activity in part.commit.activities.items():
                if activity.state is ActivityState.AVAILABLE:
                    self._offer(key, activity.task_queue)
            for worker in part.orders:
                self._look_again(worker)
            for entry in part.commit.entries:
                if entry.worker is not None and isinstance(entry.event, BindingsEnded | BindingsChanged):
                    self._look_again(WorkerKey(entry.namespace or "", entry.worker))  # it may have room again

    def _offer(self, key: ActivityKey, task_queue: str) -> None:
        name = key.namespace, task_queue
        queue = self._queue(name)
        queue.offers[key] = None
        if len(queue.offers) == 1 and not queue.polls:
            self._announce([name])
        self._get_ready(name)

    def announce_all(self) -> None:
        """Again: what was said before may not have been heard, or may have been forgotten since."""
        if waiting := [name for name, queue in self._queues.items() if queue.offers]:
            self._announce(waiting[:ANNOUNCED_MAX])

    def offered_at(self, address: str, namespace: str, task_queue: str) -> None:
        """Another node says that activities wait there."""
        self._queue((namespace, task_queue)).elsewhere[address] = None
        self._get_ready((namespace, task_queue))

    def forget_offers_but_at(self, addresses: Collection[str]) -> None:
        """Other nodes than these are gone."""
        for name, queue in tuple(self._queues.items()):
            for address in queue.elsewhere.keys() - set(addresses):
                del queue.elsewhere[address]
            if queue.is_idle:
                del self._queues[name]

    async def hand_out_to(
        self, worker_key: WorkerKey, session_id: str, task_queue: str, limit: int
    ) -> list[Activity]:
        """For a worker that is at home at another node: up to so many of what waits here."""
        queue = self._queues.get((worker_key.namespace, task_queue))
        wanted: list[ActivityKey] = []
        for key in tuple(queue.offers) if queue is not None else ():
            assert queue is not None
            del queue.offers[key]
            activity = self._available(key)
            if activity is not None and activity.task_queue == task_queue:
                wanted.append(key)
            if len(wanted) >= limit:
                break
        handed: list[tuple[ActivityKey, Activity]] = []
        try:
            if wanted:
                handed = await self._custody.hand_out_from_afar(wanted, worker_key, session_id)
        finally:
            for key in set(wanted) - {key for key, _ in handed}:
                if self._available(key) is not None:
                    self._offer(key, task_queue)
        return [activity for _, activity in handed]

    def waiting(self, namespace: str, task_queue: str) -> list[Activity]:
        """Activities that no worker has taken yet, in the order in which they came."""
        queue = self._queues.get((namespace, task_queue))
        found = [self._available(key) for key in queue.offers] if queue else []
        return [activity for activity in found if activity is not None]

    # -- who waits

    def waiting_count(self) -> int:
        return sum(map(len, self._polls.values()))

    async def poll(
        self, worker_key: WorkerKey, session_id: str, task_queue: str, limit: int, wait_ms: int
    ) -> list[Activity]:
        """Activities that the worker holds from now on, durably; none if none came in time."""
        if self._closed:
            raise ShuttingDown
        worker = self._node.shard(*worker_key).describe(worker_key)
        orders.check_live(worker_key, worker, session_id)
        name = task_queue or worker.profile.task_queue
        if not name:
            raise InvalidField(field="task_queue", rule="must be set when the worker has no task_queue")
        if len(self._polls.get(worker_key, ())) >= POLLS_PER_WORKER_MAX:
            raise TooManyPolls(worker=worker_key.instance_key, limit=POLLS_PER_WORKER_MAX)
        poll = Poll((worker_key.namespace, name), worker_key, session_id, limit)
        try:
            await self._wait(poll, wait_ms)
            await self._settle(poll)
        except BaseException:
            # The caller has gone, or the answer cannot be given: nobody knows that these were handed out.
            poll.answered.cancel()
            self._take_back(poll)
            raise
        return [activity for _, activity in poll.taken]

    async def _wait(self, poll: Poll, wait_ms: int) -> None:
        self._queue(poll.queue).polls[poll] = None
        self._polls.setdefault(poll.worker, set()).add(poll)
        if not wait_ms:
            await self._match_now(poll)
            return
        self._get_ready(poll.queue)
        timer = asyncio.ensure_future(self._node.clock.sleep(wait_ms))
        try:
            await asyncio.wait((poll.answered, timer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            self._forget(poll)
        self._close(poll)

    def _close(self, poll: Poll) -> None:
        """Raise what it was refused with; what is fetched for it from now on comes too late."""
        if poll.answered.done():
            poll.answered.result()
        else:
            poll.answered.cancel()

    async def _match_now(self, poll: Poll) -> None:
        """For whoever does not want to wait; those who came before are served before."""
        queue = self._queues[poll.queue]
        try:
            while not poll.answered.done() and queue.offers and self._match(queue):
                pass
            if not poll.answered.done() and queue.elsewhere and self._takes_work(poll):
                await self._fetch(poll, queue)
        finally:
            self._forget(poll)
        self._close(poll)

    def _forget(self, poll: Poll) -> None:
        queue = self._queues.get(poll.queue)  # gone with the last one who waited there
        if queue is not None:
            queue.polls.pop(poll, None)
            if queue.is_idle:
                del self._queues[poll.queue]
        polls = self._polls.get(poll.worker)
        if polls is not None:
            polls.discard(poll)
            if not polls:
                del self._polls[poll.worker]

    async def _settle(self, poll: Poll) -> None:
        if not poll.taken:
            return
        # What another node handed out is durable there already.
        shards = {
            self._custody.shard(key)
            for key, _ in poll.taken
            if self._custody.is_here(key.namespace, key.workflow_id)
        }
        shards.add(self._node.shard(*poll.worker))
        for shard in shards:
            await self._node.durable(shard)

    def _take_back(self, poll: Poll) -> None:
        for key, activity in poll.taken:
            try:
                if self._elsewhere is not None and not self._custody.is_here(key.namespace, key.workflow_id):
                    self._begin(self._give_back(key, activity))
                    continue
                self._custody.withdraw(key, holder_of(activity), "the poll that it was handed to had ended")
            except Unavailable:
                continue  # what was not durable is gone with the shard; what was is verified later

    async def _give_back(self, key: ActivityKey, activity: Activity) -> None:
        assert self._elsewhere is not None
        try:
            await self._elsewhere.take_back(key, holder_of(activity))
        except LivenessError:
            pass  # verified later

    def _look_again(self, worker_key: WorkerKey) -> None:
        """What the worker may take has changed, or whether it may take anything."""
        for poll in tuple(self._polls.get(worker_key, ())):
            self._viable(poll)
            self._get_ready(poll.queue)

    def look_again_everywhere(self) -> None:
        """A namespace may have been resumed."""
        for queue in self._queues:
            self._get_ready(queue)

    def close(self) -> None:
        """Those who wait are told to go elsewhere."""
        self._closed = True
        for polls in tuple(self._polls.values()):
            for poll in tuple(polls):
                poll.refuse(ShuttingDown())

    # -- bringing them together

    def _queue(self, key: QueueKey) -> TaskQueue:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = TaskQueue()
        return queue

    def _get_ready(self, key: QueueKey) -> None:
        queue = self._queues.get(key)
        if queue is None or not queue.polls or not (queue.offers or queue.elsewhere):
            return
        self._ready[key] = None
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._take_turns)

    def _take_turns(self) -> None:
        self._turn = None
        for _ in range(MATCHES_PER_TURN):
            if not self._ready:
                return
            key = next(iter(self._ready))
            del self._ready[key]
            queue = self._queues.get(key)
            if self._match(queue):
                self._get_ready(key)
            elif queue is not None and queue.elsewhere and self._fetch_for_one(queue):
                self._get_ready(key)
        if self._ready:
            self._turn = asyncio.get_running_loop().call_soon(self._take_turns)

    def _match(self, queue: TaskQueue | None) -> bool:
        """Give one poll its share of what is there. False if there is no match to be made."""
        if queue is None or not queue.offers:
            return False
        poll = next(filter(self._takes_work, tuple(queue.polls)), None)
        if poll is None:
            return False
        share = min(poll.limit, ceil(len(queue.offers) / len(queue.polls)))
        for key in tuple(queue.offers):
            del queue.offers[key]
            activity = self._available(key)
            if activity is None or activity.task_queue != poll.queue[1]:
                continue
            poll.taken.append((key, self._custody.hand_out(key, poll.worker)))
            if len(poll.taken) >= share or not self._takes_work(poll):
                break
        if poll.taken:
            del queue.polls[poll]
            poll.answered.set_result(None)
        return bool(poll.taken)

    def _fetch_for_one(self, queue: TaskQueue) -> bool:
        """Let the first who waits ask another node. False if there is none, or if enough are asking."""
        if queue.fetches >= FETCHES_MAX:
            return False
        poll = next(filter(self._takes_work, tuple(queue.polls)), None)
        if poll is None:
            return False
        poll.fetching = True  # from now on, so that nobody else begins for it
        self._begin(self._fetch_and_go_on(poll, queue))
        return True

    async def _fetch_and_go_on(self, poll: Poll, queue: TaskQueue) -> None:
        await self._fetch(poll, queue)
        self._get_ready(poll.queue)

    async def _fetch(self, poll: Poll, queue: TaskQueue) -> None:
        """Ask those who said that they have something, one after the other, until one gives."""
        assert self._elsewhere is not None
        poll.fetching = True
        queue.fetches += 1
        try:
            while queue.elsewhere and not poll.answered.done():
                address = next(iter(queue.elsewhere))
                try:
                    found = await self._elsewhere.hand_out(
                        address, poll.worker, poll.session_id, poll.queue[1], poll.limit
                    )
                except LivenessError as error:
                    logger.debug("nothing fetched", at=address, why=str(error))
                    found = []
                if len(found) < poll.limit:
                    queue.elsewhere.pop(address, None)
                if found:
                    poll.taken += [(ActivityKey(poll.queue[0], *activity.id), activity) for activity in found]
                    if poll.answered.done():
                        self._take_back(poll)  # who asked is gone
                    else:
                        queue.polls.pop(poll, None)
                        poll.answered.set_result(None)
        finally:
            poll.fetching = False
            queue.fetches -= 1

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._fetches.add(task)
        task.add_done_callback(self._fetches.discard)

    def _available(self, key: ActivityKey) -> Activity | None:
        """The activity, if it waits for a worker."""
        try:
            activity = self._custody.shard(key).activities.get(key)
        except Unavailable:
            return None  # offered again when the shard is opened
        return activity if activity and activity.state is ActivityState.AVAILABLE else None

    def _viable(self, poll: Poll) -> Worker | None:
        """The poll's worker if its lease is live; otherwise the poll ends."""
        try:
            worker = self._node.shard(*poll.worker).describe(poll.worker)
            orders.check_live(poll.worker, worker, poll.session_id)
        except LivenessError as error:
            poll.refuse(error)
            return None
        return worker

    def _takes_work(self, poll: Poll) -> bool:
        if poll.answered.done() or poll.fetching:
            return False
        worker = self._viable(poll)
        if worker is None:
            return False
        try:
            orders.check_takes_work(poll.worker, worker, self._node.policies.of(poll.worker.namespace))
        except LivenessError:
            return False  # it waits on: paused, draining, or with its hands full
        return True
