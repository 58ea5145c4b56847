"""Brings available activities and waiting workers together, the moment both are there.

Everything here is derived: what is available is in the activities table and in the shards' memory, and this index of it
is filled from there whenever a shard is opened and kept by each commit. What waits is open polls. A match is made in
turns, one task queue after the other, so that a queue with a hundred thousand activities holds up none with one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import ceil

from liveness.domain import orders
from liveness.domain.activity import Activity, ActivityState
from liveness.domain.errors import InvalidField, LivenessError, ShardUnavailable, ShuttingDown, TooManyPolls
from liveness.domain.events import BindingsChanged, BindingsEnded
from liveness.domain.keys import ActivityKey, WorkerKey
from liveness.domain.worker import Worker
from liveness.shard.custody import Custody
from liveness.shard.node import Node
from liveness.shard.shard import HandedOver, Shard

POLLS_PER_WORKER_MAX = 1_000
MATCHES_PER_TURN = 100
"""After so many, calls that came in meanwhile get their turn."""

QueueKey = tuple[str, str]


class Poll:
    """A worker that waits for activities."""

    __slots__ = ("answered", "limit", "queue", "session_id", "taken", "worker")

    def __init__(self, queue: QueueKey, worker: WorkerKey, session_id: str, limit: int) -> None:
        self.queue = queue
        self.worker = worker
        self.session_id = session_id
        self.limit = limit
        self.taken: list[tuple[ActivityKey, Activity]] = []
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def refuse(self, error: LivenessError) -> None:
        if not self.answered.done():
            self.answered.set_exception(error)


class TaskQueue:
    """Of one namespace: what is available, and who waits for it, each in order of arrival."""

    __slots__ = ("offers", "polls")

    def __init__(self) -> None:
        self.offers: dict[ActivityKey, None] = {}
        self.polls: dict[Poll, None] = {}


class Matching:
    def __init__(self, node: Node, custody: Custody) -> None:
        self._node = node
        self._custody = custody
        self._queues: dict[QueueKey, TaskQueue] = {}
        self._polls: dict[WorkerKey, set[Poll]] = {}
        self._ready: dict[QueueKey, None] = {}
        """Queues that may have a match, next one first."""
        self._turn: asyncio.Handle | None = None
        self._closed = False
        node.on_opened.append(self._on_opened)
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
        queue = key.namespace, task_queue
        self._queue(queue).offers[key] = None
        self._get_ready(queue)

    def waiting(self, namespace: str, task_queue: str) -> list[Activity]:
        """Activities that no worker has taken yet, in the order in which they came."""
        queue = self._queues.get((namespace, task_queue))
        found = [self._available(key) for key in queue.offers] if queue else []
        return [activity for activity in found if activity is not None]

    # -- who waits

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
            self._take_back(poll)
            raise
        return [activity for _, activity in poll.taken]

    async def _wait(self, poll: Poll, wait_ms: int) -> None:
        self._queue(poll.queue).polls[poll] = None
        self._polls.setdefault(poll.worker, set()).add(poll)
        if not wait_ms:
            self._match_now(poll)
            return
        self._get_ready(poll.queue)
        timer = asyncio.ensure_future(self._node.clock.sleep(wait_ms))
        try:
            await asyncio.wait((poll.answered, timer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            self._forget(poll)
        if poll.answered.done():
            poll.answered.result()

    def _match_now(self, poll: Poll) -> None:
        """For whoever does not want to wait; those who came before are served before."""
        queue = self._queues[poll.queue]
        try:
            while not poll.answered.done() and queue.offers and self._match(queue):
                pass
        finally:
            self._forget(poll)
        if poll.answered.done():
            poll.answered.result()

    def _forget(self, poll: Poll) -> None:
        queue = self._queues.get(poll.queue)  # gone with the last one who waited there
        if queue is not None:
            queue.polls.pop(poll, None)
            if not queue.polls and not queue.offers:
                del self._queues[poll.queue]
        polls = self._polls.get(poll.worker)
        if polls is not None:
            polls.discard(poll)
            if not polls:
                del self._polls[poll.worker]

    async def _settle(self, poll: Poll) -> None:
        if not poll.taken:
            return
        shards = {self._custody.shard(key) for key, _ in poll.taken}
        shards.add(self._node.shard(*poll.worker))
        for shard in shards:
            await self._node.durable(shard)

    def _take_back(self, poll: Poll) -> None:
        for key, activity in poll.taken:
            try:
                self._custody.withdraw(key, activity, "the poll that it was handed to had ended")
            except (ShardUnavailable, ShuttingDown):
                continue  # what was not durable is gone with the shard; what was is verified later

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
        if queue is None or not queue.offers or not queue.polls:
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
            if self._match(self._queues.get(key)):
                self._get_ready(key)
        if self._ready:
            self._turn = asyncio.get_running_loop().call_soon(self._take_turns)

    def _match(self, queue: TaskQueue | None) -> bool:
        """Give one poll its share of what is there. False if there is no match to be made."""
        poll = next(filter(self._takes_work, tuple(queue.polls)), None) if queue is not None else None
        if queue is None or poll is None:
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

    def _available(self, key: ActivityKey) -> Activity | None:
        """The activity, if it waits for a worker."""
        try:
            activity = self._custody.shard(key).activities.get(key)
        except (ShardUnavailable, ShuttingDown):
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
        if poll.answered.done():
            return False
        worker = self._viable(poll)
        if worker is None:
            return False
        try:
            orders.check_takes_work(poll.worker, worker, self._node.policies.of(poll.worker.namespace))
        except LivenessError:
            return False  # it waits on: paused, draining, or with its hands full
        return True
