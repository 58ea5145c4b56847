"""Matches available activities with waiting polls as soon as both exist.

All state here is derived. The activities table and the shards' memory hold the available activities; this index is
filled when a shard opens and updated by each commit. Matches are made in turns, one task queue after the other, so that
a queue with a hundred thousand activities does not delay a queue with one.

A poll waits at the node that serves its worker. A node with available activities announces their task queues and types
to the other nodes, and a poll that finds nothing on its own node fetches activities from those nodes.

A poll may name the activity types that its worker can run, and gets no others. An activity of a type that nobody polls for
waits, and holds up no other.

The available activities of a workflow with a concurrency limit are parked. As many come to the queue as may start, by priority and then the
oldest first; they are parked again if others start before them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice
from math import ceil
from operator import itemgetter
from typing import NamedTuple

import structlog

from liveness.background import BackgroundTasks
from liveness.clock import wait_or_timeout
from liveness.dispatch.available_activities import ActivityTypes, AvailableActivities
from liveness.dispatch.ownership import ActivityOwnership
from liveness.dispatch.queue_index import Offer, PollsByTypes, RemoteOffers
from liveness.dispatch.remote import RemoteOwnership
from liveness.domain import worker_control
from liveness.domain.activity import Activity, ActivityState
from liveness.domain.activity_decider import current_holder
from liveness.domain.concurrency import LimitKey
from liveness.domain.errors import InvalidField, LivenessError, ShuttingDown, TooManyPolls, Unavailable
from liveness.domain.events import BindingsChanged, BindingsEnded
from liveness.domain.keys import ActivityKey, WorkerKey, shard_of
from liveness.domain.worker import Worker
from liveness.engine.backlog import QueueName
from liveness.engine.listener import NodeListener
from liveness.engine.node import Node
from liveness.engine.open_activities import payload_bytes
from liveness.engine.shard import PreparedCommit, Shard
from liveness.slices import SLICE_US, end_slice, in_slices

logger = structlog.get_logger("liveness.matching")

POLLS_PER_WORKER_MAX = 1_000
ANNOUNCED_OFFERS_MAX = 1_000
FETCHES_MAX = 8
HAND_OUT_BYTES_MAX = 4 * 1024 * 1024
"""How many bytes of payloads one poll gets at most, apart from its last activity: a hundred large ones would be an answer of
25 MiB, which takes long to build and which most clients refuse."""
"""How many polls of one queue may ask other nodes at the same time."""
UNPARKED_MAX = 1_000
"""How many parked activities of one workflow come back at once."""
MATCH_US = 50
GROUP_US = 2
POLL_US = 1
"""The estimated processor time of a match and of each activity that it hands out, of each group of polls that competes for it, and of
each poll that is passed over."""
WORKERS_PER_SLICE = 100
"""Each may have a thousand polls."""
ATTENDED_TYPES_MAX = 10_000
"""Of a queue; beyond that, those that were attended last are kept."""


class _Parked(NamedTuple):
    """An available activity whose workflow has reached its concurrency limit."""

    priority_key: int
    since_ms: int
    key: ActivityKey


class Poll:
    """A worker that waits for activities."""

    __slots__ = ("assigned", "completion", "is_fetching", "limit", "queue", "session_id", "types", "worker")

    def __init__(
        self, queue: QueueName, worker: WorkerKey, session_id: str, limit: int, types: ActivityTypes
    ) -> None:
        self.queue = queue
        self.types = types
        self.worker = worker
        self.session_id = session_id
        self.limit = limit
        self.assigned: list[tuple[ActivityKey, Activity]] = []
        self.completion: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_fetching = False
        """The poll is asking another node."""

    def fail(self, error: LivenessError) -> None:
        if not self.completion.done():
            self.completion.set_exception(error)


class TaskQueue:
    """The available activities and the waiting polls of one task queue, each in order of arrival."""

    __slots__ = ("active_fetches", "attended_ms", "attended_types", "available", "polls", "remote_offers")

    def __init__(self, now_ms: int) -> None:
        self.available = AvailableActivities()
        self.polls: PollsByTypes[Poll] = PollsByTypes()
        """By the types that they are for: the workers of one program poll for the same."""
        self.remote_offers = RemoteOffers()
        self.active_fetches = 0
        """How many polls are asking one of those nodes."""
        self.attended_ms = now_ms
        """When a worker was last known to attend the queue for all types, on any node; at first, since when this node knows
        the queue."""
        self.attended_types: dict[str, int] = {}
        """The same for single types, the last ones last."""

    @property
    def is_idle(self) -> bool:
        return not self.available and not self.polls and not self.remote_offers

    def note_attended(self, types: Collection[str] | None, now_ms: int) -> None:
        if types is None:
            self.attended_ms = now_ms
            return
        attended = self.attended_types
        for name in types:
            attended.pop(name, None)
            attended[name] = now_ms
        if len(attended) > ATTENDED_TYPES_MAX:
            for name in tuple(islice(attended, len(attended) - ATTENDED_TYPES_MAX)):
                del attended[name]


class Matching(NodeListener):
    def __init__(
        self,
        node: Node,
        ownership: ActivityOwnership,
        remote: RemoteOwnership | None = None,
        announce: Callable[[Collection[Offer]], None] = lambda offers: None,
    ) -> None:
        """`announce` tells the other nodes which activities wait on this node."""
        self._node = node
        self._ownership = ownership
        self._remote = remote
        self._announce = announce
        self._tasks = BackgroundTasks("matching")
        self._queues: dict[QueueName, TaskQueue] = {}
        self._polls: dict[WorkerKey, dict[Poll, None]] = {}
        self._ready_queues: dict[QueueName, None] = {}
        """Queues that may have a match, next one first."""
        self._parked: dict[LimitKey, list[_Parked]] = {}
        """A heap for each workflow. Entries that are out of date are found when they come to the front."""
        self._parked_keys: set[ActivityKey] = set()
        self._scheduled_turn: asyncio.Handle | None = None
        self._spent_us = 0
        """The estimated processor time of all matches so far."""
        self._unrepeated: Iterator[Offer] = iter(())
        """What the next `announce_all` goes on with."""
        self._is_closed = False

    # -- available activities

    def shard_opened(self, shard: Shard) -> None:
        waiting = [
            (activity.since_ms, key, activity)
            for key, activity in shard.activities.items()
            if activity.state is ActivityState.AVAILABLE
        ]
        for _, key, activity in sorted(waiting, key=itemgetter(0, 1)):
            self._offer(key, activity)

    def shard_closed(self, shard: Shard) -> None:
        """Forget the shard's activities, and end the polls of its workers: another node serves both from now on."""
        for name, queue in tuple(self._queues.items()):
            for key in [key for key in queue.available if self._shard_id(key) == shard.id]:
                queue.available.discard(key)
            if queue.is_idle:
                del self._queues[name]
        for limit_key in tuple(self._parked):
            if shard_of(*limit_key, self._node.shard_count) == shard.id:
                self._parked_keys.difference_update(entry.key for entry in self._parked.pop(limit_key))
        for worker_key in tuple(self._polls):
            if shard_of(*worker_key, self._node.shard_count) == shard.id:
                self._recheck_worker(worker_key)

    def _shard_id(self, key: ActivityKey) -> int:
        return shard_of(key.namespace, key.workflow_id, self._node.shard_count)

    def committed(self, commits: Sequence[PreparedCommit]) -> None:
        for part in commits:
            for key, activity in part.commit.activities.items():
                if activity.state is ActivityState.AVAILABLE:
                    self._offer(key, activity)
                else:
                    self._withdraw_offer(key, activity.task_queue)
                if self._parked:
                    self._unpark(LimitKey(key.namespace, key.workflow_id))
            if self._parked:
                for object_key in part.commit.objects:
                    self._unpark(LimitKey(object_key.namespace, object_key.name))
            for worker in part.changed_orders:
                self._recheck_worker(worker)
            for entry in part.commit.entries:
                if entry.worker is not None and isinstance(entry.event, BindingsEnded | BindingsChanged):
                    # The worker may be below its quota again.
                    self._recheck_worker(WorkerKey(entry.namespace or "", entry.worker))

    def _offer(self, key: ActivityKey, activity: Activity) -> None:
        """Let polls have an available activity; at once, or when its concurrency limit has a free slot."""
        limit_key = LimitKey(key.namespace, key.workflow_id)
        if self._is_limited(limit_key):
            self._park(key, activity)
            self._unpark(limit_key)
        else:
            self._add(key, activity)

    def _add(self, key: ActivityKey, activity: Activity) -> None:
        name, activity_type = (key.namespace, activity.task_queue), activity.type
        queue = self._queue(name)
        is_first_of_type = queue.available.add(key, activity_type, activity.priority)
        if is_first_of_type and not queue.polls.has_any_for(activity_type):
            self._announce([Offer(*name, activity_type)])
        self._mark_ready(name)

    def tick(self) -> None:
        """Bring back what is parked although its workflow has free slots, because a hand-out came to nothing."""
        for limit_key in tuple(self._parked):
            self._unpark(limit_key)

    def _is_limited(self, limit_key: LimitKey) -> bool:
        try:
            return limit_key in self._node.shard(*limit_key).objects.limits
        except Unavailable:
            return False

    def _park(self, key: ActivityKey, activity: Activity) -> None:
        if key not in self._parked_keys:
            self._parked_keys.add(key)
            entry = _Parked(activity.priority.priority_key, activity.since_ms, key)
            heappush(self._parked.setdefault(LimitKey(key.namespace, key.workflow_id), []), entry)

    def _unpark(self, limit_key: LimitKey) -> None:
        """Offer as many parked activities of a workflow as may start now."""
        parked = self._parked.get(limit_key)
        if parked is None:
            return
        try:
            limits = self._node.shard(*limit_key).objects.limits
        except Unavailable:
            return  # they are offered again when the shard opens
        left = min(limits.free_slots(limit_key), UNPARKED_MAX)
        while parked and left > 0:
            key = heappop(parked).key
            self._parked_keys.discard(key)
            if (activity := self._find_available(key)) is not None:
                left -= 1
                self._add(key, activity)
        if not parked:
            del self._parked[limit_key]

    def _withdraw_offer(self, key: ActivityKey, task_queue: str) -> None:
        """Forget an activity that was claimed or cancelled. Polls for its type might never come and find it outdated."""
        queue = self._queues.get((key.namespace, task_queue))
        if queue is not None and key in queue.available and self._find_available(key) is None:
            queue.available.discard(key)
            if queue.is_idle:
                del self._queues[key.namespace, task_queue]

    def announce_all(self) -> None:
        """Repeat all announcements: other nodes may have missed or forgotten the first. If there are too many for one
        message, the next call goes on after the last one."""
        offers = list(islice(self._unrepeated, ANNOUNCED_OFFERS_MAX))
        if (room := ANNOUNCED_OFFERS_MAX - len(offers)) and self._queues:
            told = set(offers)
            self._unrepeated = self._offers_of(tuple(self._queues))
            offers += [offer for offer in islice(self._unrepeated, room) if offer not in told]
        if offers:
            self._announce(offers)

    def _offers_of(self, names: Iterable[QueueName]) -> Iterator[Offer]:
        for name in names:
            queue = self._queues.get(name)
            for activity_type in () if queue is None else tuple(queue.available.types):
                yield Offer(*name, activity_type)

    def note_remote_offer(
        self, address: str, namespace: str, task_queue: str, activity_types: Collection[str] = ()
    ) -> None:
        """Remember that another node has available activities. `activity_types`: none if the node did not say."""
        self._queue((namespace, task_queue)).remote_offers.add(address, activity_types)
        self._mark_ready((namespace, task_queue))

    def forget_remote_offers_except(self, addresses: Collection[str]) -> None:
        """Forget the announcements of nodes that are gone."""
        for name, queue in tuple(self._queues.items()):
            queue.remote_offers.retain(addresses)
            if queue.is_idle:
                del self._queues[name]

    async def hand_out_to_remote(
        self,
        worker_key: WorkerKey,
        session_id: str,
        task_queue: str,
        limit: int,
        types: ActivityTypes = None,
    ) -> list[Activity]:
        """Give up to `limit` activities of this node to a worker whose shard another node serves."""
        queue = self._queues.get((worker_key.namespace, task_queue))
        if queue is None:
            return []
        queue.note_attended(types, self._node.clock.monotonic_ms())
        wanted = self._first_available(queue, task_queue, limit, types)
        for key in wanted:
            queue.available.discard(key, was_handed_out=True)
        handed: list[tuple[ActivityKey, Activity]] = []
        try:
            if wanted:
                handed = await self._ownership.hand_out_durably(wanted, worker_key, session_id)
        finally:
            handed_keys = {key for key, _ in handed}
            for key in wanted:
                if key not in handed_keys and (activity := self._find_available(key)) is not None:
                    self._offer(key, activity)
        return [activity for _, activity in handed]

    def available_activities(self, namespace: str, task_queue: str) -> list[Activity]:
        """Returns activities that no worker has taken yet, in order of arrival."""
        queue = self._queues.get((namespace, task_queue))
        found = [self._find_available(key) for key in queue.available] if queue else []
        return [activity for activity in found if activity is not None]

    # -- workers that attend a queue

    def unattended_ms(self, namespace: str, task_queue: str, activity_type: str) -> int:
        """How long no worker has attended a queue for activities of this type, as far as this node knows: polled it, here
        or on another node, or held an activity of it, as workers do that are too busy to poll."""
        queue = self._queues.get((namespace, task_queue))
        if queue is None:
            return 0  # about to be offered
        now_ms = self._node.clock.monotonic_ms()
        if self._is_held((namespace, task_queue)):
            queue.note_attended(None, now_ms)
        if queue.polls.has_any_for(activity_type):
            queue.note_attended(None if None in queue.polls.groups() else (activity_type,), now_ms)
        return now_ms - max(queue.attended_ms, queue.attended_types.get(activity_type, 0))

    def attended_types(
        self, namespace: str, task_queue: str, activity_types: Collection[str]
    ) -> Collection[str] | None:
        """Which of these types workers attend in a queue of this node: the answer to another node, whose activities of these
        types wait in it. None if no worker attends any; empty if some do and the other node named no types."""
        queue = self._queues.get((namespace, task_queue))
        if self._is_held((namespace, task_queue)):
            return activity_types
        if queue is None or not queue.polls:
            return None
        attended = [name for name in activity_types if queue.polls.has_any_for(name)]
        return attended if attended or not activity_types else None

    def note_attended(self, queues: Iterable[tuple[str, str, Collection[str]]]) -> None:
        """Remember that workers attend these queues on another node: namespace, task queue and activity types; no types for
        all."""
        now_ms = self._node.clock.monotonic_ms()
        for namespace, task_queue, types in queues:
            if (queue := self._queues.get((namespace, task_queue))) is not None:
                queue.note_attended(frozenset(types) or None, now_ms)

    def _is_held(self, name: QueueName) -> bool:
        return any(name in shard.activities.backlog.held for shard in self._node.shards())

    # -- waiting polls

    async def polled_queues(self, namespace: str) -> set[str]:
        """The task queues of a namespace for which polls wait at this node."""
        workers = [key for key in self._polls if key.namespace == namespace]
        return {
            poll.queue[1]
            async for key in in_slices(workers, WORKERS_PER_SLICE)
            for poll in self._polls.get(key, ())
        }

    def poll_counts(self, name: QueueName) -> tuple[int, int]:
        """How many polls of a task queue wait at this node, and of how many workers."""
        queue = self._queues.get(name)
        if queue is None:
            return 0, 0
        return len(queue.polls), len({poll.worker for poll in queue.polls})

    def waiting_poll_count(self) -> int:
        return sum(map(len, self._polls.values()))

    async def poll(
        self,
        worker_key: WorkerKey,
        session_id: str,
        task_queue: str,
        limit: int,
        wait_ms: int,
        types: ActivityTypes = None,
    ) -> list[Activity]:
        """Returns activities that the worker now holds durably; an empty list if none came in time."""
        if self._is_closed:
            raise ShuttingDown
        worker = self._node.shard(*worker_key).describe(worker_key)
        worker_control.check_lease_is_live(worker_key, worker, session_id)
        name = task_queue or worker.shared.profile.task_queue
        if not name:
            raise InvalidField(field="task_queue", rule="must be set when the worker has no task_queue")
        if len(self._polls.get(worker_key, ())) >= POLLS_PER_WORKER_MAX:
            raise TooManyPolls(worker=worker_key.instance_key, limit=POLLS_PER_WORKER_MAX)
        poll = Poll((worker_key.namespace, name), worker_key, session_id, limit, types)
        try:
            await self._wait_for_match(poll, wait_ms)
            await self._wait_durable(poll)
        except BaseException:
            # The caller is gone, or cannot be answered: the worker will not learn of these activities.
            poll.completion.cancel()
            self._return_assigned(poll)
            raise
        return [activity for _, activity in poll.assigned]

    async def _wait_for_match(self, poll: Poll, wait_ms: int) -> None:
        self._queue(poll.queue).polls.add(poll.types, poll)
        self._polls.setdefault(poll.worker, {})[poll] = None
        if not wait_ms:
            await self._match_without_waiting(poll)
            return
        self._mark_ready(poll.queue)
        try:
            await wait_or_timeout(poll.completion, self._node.clock, wait_ms)
        finally:
            self._remove_poll(poll)
        self._finish_poll(poll)

    def _finish_poll(self, poll: Poll) -> None:
        """Raise the error that ended the poll, if any. Activities that a fetch brings later are returned."""
        if poll.completion.done():
            poll.completion.result()
        else:
            poll.completion.cancel()

    async def _match_without_waiting(self, poll: Poll) -> None:
        """Serve a poll that does not wait. Polls that came earlier are served first."""
        queue = self._queues[poll.queue]
        began_us = self._spent_us
        try:
            while not poll.completion.done() and queue.available and self._match_one(queue):
                if self._spent_us - began_us > SLICE_US:
                    await end_slice()
                    began_us = self._spent_us
            is_offered = queue.remote_offers.first_address(poll.types) is not None
            if not poll.completion.done() and is_offered and self._can_take_work(poll):
                await self._fetch(poll, queue)
        finally:
            self._remove_poll(poll)
        self._finish_poll(poll)

    def _remove_poll(self, poll: Poll) -> None:
        queue = self._queues.get(poll.queue)  # None if it became idle meanwhile
        if queue is not None:
            queue.polls.discard(poll.types, poll)
            queue.note_attended(poll.types, self._node.clock.monotonic_ms())
            if queue.is_idle:
                del self._queues[poll.queue]
        polls = self._polls.get(poll.worker)
        if polls is not None:
            polls.pop(poll, None)
            if not polls:
                del self._polls[poll.worker]

    async def _wait_durable(self, poll: Poll) -> None:
        if not poll.assigned:
            return
        # What another node handed out is durable there already.
        shards = {
            self._ownership.shard(key)
            for key, _ in poll.assigned
            if self._ownership.is_local(key.namespace, key.workflow_id)
        }
        shards.add(self._node.shard(*poll.worker))
        await self._node.wait_durable(*shards)

    def _return_assigned(self, poll: Poll) -> None:
        for key, activity in poll.assigned:
            try:
                if self._remote is not None and not self._ownership.is_local(key.namespace, key.workflow_id):
                    self._tasks.start(self._return_to_remote(key, activity))
                    continue
                self._ownership.withdraw(
                    key, current_holder(activity), "the poll that it was handed to had ended"
                )
            except Unavailable:
                continue  # a hand-out that was not durable is lost with the shard; the reconciler finds the others

    async def _return_to_remote(self, key: ActivityKey, activity: Activity) -> None:
        assert self._remote is not None
        try:
            await self._remote.take_back(key, current_holder(activity))
        except LivenessError:
            pass  # the reconciler finds it

    def _recheck_worker(self, worker_key: WorkerKey) -> None:
        """Match the worker's polls again, or end them if its lease is over."""
        for poll in tuple(self._polls.get(worker_key, ())):
            self._live_worker(poll)
            self._mark_ready(poll.queue)

    def policy_changed(self) -> None:
        """Match all queues with polls again: a namespace may have been resumed."""
        for polls in self._polls.values():
            for poll in polls:
                self._mark_ready(poll.queue)

    def end_polls(self) -> None:
        """End all polls, and those that still come; their callers are told to ask another node."""
        self._is_closed = True
        for polls in tuple(self._polls.values()):
            for poll in tuple(polls):
                poll.fail(ShuttingDown())

    async def close(self) -> None:
        """End what still runs in the background: fetches from other nodes, and returns of activities that came too late."""
        await self._tasks.close()

    # -- matching

    def _queue(self, key: QueueName) -> TaskQueue:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = TaskQueue(self._node.clock.monotonic_ms())
        return queue

    def _mark_ready(self, key: QueueName) -> None:
        queue = self._queues.get(key)
        if queue is None or not queue.polls or not (queue.available or queue.remote_offers):
            return
        self._ready_queues[key] = None
        if self._scheduled_turn is None:
            self._scheduled_turn = asyncio.get_running_loop().call_soon(self._run_turn)

    def _run_turn(self) -> None:
        self._scheduled_turn = None
        began_us = self._spent_us
        while self._spent_us - began_us < SLICE_US:
            if not self._ready_queues:
                return
            key = next(iter(self._ready_queues))
            del self._ready_queues[key]
            queue = self._queues.get(key)
            if self._match_one(queue):
                self._mark_ready(key)
            elif queue is not None and queue.remote_offers and self._start_fetch(queue):
                self._mark_ready(key)
        if self._ready_queues:
            self._scheduled_turn = asyncio.get_running_loop().call_soon(self._run_turn)

    def _match_one(self, queue: TaskQueue | None) -> bool:
        """Give one poll its share of the available activities. Returns False if there is no match."""
        self._spent_us += MATCH_US
        while queue is not None and (competing := queue.polls.groups_for(queue.available.types)):
            self._spent_us += GROUP_US * len(competing)
            poll = self._first_that_takes_work(queue.polls.in_order(competing))
            if poll is None:
                return False
            poll_count = sum(map(queue.polls.group_size, competing))
            share = min(poll.limit, ceil(queue.available.count(poll.types) / poll_count))
            keys = self._first_available(queue, poll.queue[1], share, poll.types)
            if not keys:
                continue  # all of these types were outdated and have left the queue; another poll may have a match
            poll.assigned = self._ownership.hand_out(keys, poll.worker, poll.session_id)
            self._spent_us += MATCH_US * len(keys) + len(poll.types or ())
            for key, _ in poll.assigned:
                queue.available.discard(key, was_handed_out=True)
            if poll.assigned:
                queue.polls.discard(poll.types, poll)
                poll.completion.set_result(None)
            return bool(poll.assigned)
        return False

    def _start_fetch(self, queue: TaskQueue) -> bool:
        """Let the first waiting poll ask another node. Returns False if no poll may, or if enough polls are asking."""
        if queue.active_fetches >= FETCHES_MAX:
            return False
        offers = queue.remote_offers
        self._spent_us += GROUP_US * len(queue.polls.groups())
        offered = [types for types in queue.polls.groups() if offers.first_address(types) is not None]
        poll = self._first_that_takes_work(queue.polls.in_order(offered))
        if poll is None:
            return False
        poll.is_fetching = True  # at once, so that no second fetch starts for the same poll
        self._tasks.start(self._fetch_then_match(poll, queue))
        return True

    async def _fetch_then_match(self, poll: Poll, queue: TaskQueue) -> None:
        await self._fetch(poll, queue)
        self._mark_ready(poll.queue)

    async def _fetch(self, poll: Poll, queue: TaskQueue) -> None:
        """Ask the nodes that announced activities, one after the other, until one gives some."""
        assert self._remote is not None
        poll.is_fetching = True
        queue.active_fetches += 1
        try:
            while not poll.completion.done():
                address = queue.remote_offers.first_address(poll.types)
                if address is None:
                    break
                try:
                    found = await self._remote.hand_out(
                        address, poll.worker, poll.session_id, poll.queue[1], poll.limit, poll.types
                    )
                except LivenessError as error:
                    logger.debug("nothing fetched", at=address, why=str(error))
                    found = []
                if len(found) < poll.limit and sum(map(payload_bytes, found)) < HAND_OUT_BYTES_MAX:
                    queue.remote_offers.forget(address, poll.types)
                if found:
                    poll.assigned += [
                        (ActivityKey(poll.queue[0], *activity.id), activity) for activity in found
                    ]
                    if poll.completion.done():
                        self._return_assigned(poll)  # the caller is gone
                    else:
                        queue.polls.discard(poll.types, poll)
                        poll.completion.set_result(None)
        finally:
            poll.is_fetching = False
            queue.active_fetches -= 1

    def _first_available(
        self, queue: TaskQueue, task_queue: str, limit: int, types: ActivityTypes
    ) -> list[ActivityKey]:
        """Up to `limit` activities, in order of arrival; fewer if they are large. Entries that are out of date leave the
        queue."""
        found: list[ActivityKey] = []
        found_bytes = 0
        chosen: Counter[LimitKey] = Counter()
        without_slot: list[tuple[ActivityKey, Activity]] = []
        outdated: list[ActivityKey] = []
        for key in queue.available.in_order(types):
            activity = self._find_available(key)
            if activity is None or (activity.task_queue, activity.type) != (
                task_queue,
                queue.available.type_of(key),
            ):
                outdated.append(key)
                continue
            limit_key = LimitKey(key.namespace, key.workflow_id)
            if self._ownership.free_slots(key) <= chosen[limit_key]:
                without_slot.append((key, activity))
                continue
            chosen[limit_key] += 1
            found.append(key)
            found_bytes += payload_bytes(activity)
            if len(found) >= limit or found_bytes >= HAND_OUT_BYTES_MAX:
                break
        for key in outdated:
            queue.available.discard(key)
        for key, activity in without_slot:
            queue.available.discard(key)
            self._park(key, activity)
        return found

    def _find_available(self, key: ActivityKey) -> Activity | None:
        """Returns the activity if it is available on this node."""
        try:
            activity = self._ownership.shard(key).activities.get(key)
        except Unavailable:
            return None  # it is offered again when the shard opens
        return activity if activity and activity.state is ActivityState.AVAILABLE else None

    def _live_worker(self, poll: Poll) -> Worker | None:
        """Returns the poll's worker. If its lease is over, the poll ends."""
        try:
            worker = self._node.shard(*poll.worker).describe(poll.worker)
            worker_control.check_lease_is_live(poll.worker, worker, poll.session_id)
        except LivenessError as error:
            poll.fail(error)
            return None
        return worker

    def _first_that_takes_work(self, polls: Iterable[Poll]) -> Poll | None:
        """A worker may have a thousand polls; if it takes no work, it is asked once."""
        refusing: set[tuple[WorkerKey, str]] = set()
        for poll in polls:
            self._spent_us += POLL_US
            who = poll.worker, poll.session_id
            if who in refusing:
                continue
            if self._can_take_work(poll):
                return poll
            if not (poll.completion.done() or poll.is_fetching):
                refusing.add(who)
        return None

    def _can_take_work(self, poll: Poll) -> bool:
        if poll.completion.done() or poll.is_fetching:
            return False
        worker = self._live_worker(poll)
        if worker is None or poll.worker in self._node.shard(*poll.worker).disconnected:
            return False  # a disconnected worker would soon lose the work; its poll goes on waiting
        try:
            worker_control.check_accepts_work(
                poll.worker, worker, self._node.policies.of(poll.worker.namespace)
            )
        except LivenessError:
            return False  # the poll goes on waiting: its worker is paused, drains, or is at its quota
        return True
