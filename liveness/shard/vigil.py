"""Looking after what workers hold: does each hold what its activity says, and nothing else?

Both sides of a hand-out are durable as a rule. Where only one is, because a commit failed or a node died in between, it
is found here: by a timer of the held activity, and by the lease timer of the worker.
"""

from __future__ import annotations

import asyncio

from liveness.domain.activity import Activity, ActivityState
from liveness.domain.activity_decider import Holder, holder_of
from liveness.domain.errors import Unavailable
from liveness.domain.keys import ActivityKey, WorkerKey
from liveness.shard.custody import Custody
from liveness.shard.homes import Elsewhere, Glance, Held, glance, holds
from liveness.shard.node import Node
from liveness.shard.shard import Shard

DOUBT_MS = 30_000
"""How long a reschedule may be on its way before an activity that its worker is not bound to is made available."""
DOUBTS_MAX = 100_000
LOOK_AGAIN_MS = 1_000
SCRUB_MS = 60_000
"""How often a held activity is compared with its worker's bindings."""
ASKED_AT_ONCE = 500


class Vigil:
    def __init__(self, node: Node, custody: Custody, elsewhere: Elsewhere | None = None) -> None:
        self._node = node
        self._custody = custody
        self._elsewhere = elsewhere
        self._doubted: dict[ActivityKey, int] = {}
        """Held activities that their worker was not bound to, with the attempt, when they were looked at last."""
        self._next_look: dict[ActivityKey, int] = {}
        """Held activities whose worker's shard, elsewhere, was asked: when to look again."""
        self._to_verify: dict[ActivityKey, Holder] = {}
        self._to_scrub: dict[Held, None] = {}
        self._asking: asyncio.Task[None] | None = None

    def verify(self, key: ActivityKey, shard: Shard) -> int | None:
        """Look whether a held activity is where it should be. Returns when to look again."""
        activity = shard.activities.get(key)
        if activity is None or activity.state is not ActivityState.STARTED:
            return None
        now_ms = shard.now_ms()
        if now_ms < activity.due_ms:
            return activity.due_ms
        worker_key = WorkerKey(key.namespace, activity.worker)
        try:
            home = self._custody.home_here(worker_key)
        except Unavailable:
            return now_ms + LOOK_AGAIN_MS
        if home is not None:
            return self._judge(key, shard, activity, glance(home, worker_key, key.id))
        if (next_ms := self._next_look.pop(key, 0)) > now_ms:
            return next_ms
        self._to_verify[key] = holder_of(activity)
        self._ask_soon()
        return now_ms + LOOK_AGAIN_MS

    def _judge(self, key: ActivityKey, shard: Shard, activity: Activity, seen: Glance | None) -> int | None:
        """What becomes of a held activity, given what its worker's shard says."""
        now_ms = shard.now_ms()
        if seen is not None and seen.bound_attempt == activity.attempt:
            self._doubted.pop(key, None)
            if not seen.unconfirmed:
                return now_ms + SCRUB_MS
            if seen.silent_ms >= now_ms - activity.since_ms:
                # Not heard of since the hand-out: it may have died of it, and then its lease must tell, or the death
                # would not be counted.
                return now_ms + LOOK_AGAIN_MS
            self._custody.withdraw(key, holder_of(activity), "its worker never confirmed that it came")
            return None
        if self._doubted.pop(key, None) != activity.attempt:
            if len(self._doubted) >= DOUBTS_MAX:
                self._doubted.clear()  # what is still in doubt is found again
            self._doubted[key] = activity.attempt
            return now_ms + DOUBT_MS
        self._custody.withdraw(key, holder_of(activity), "its worker is not bound to it")
        return None

    def scrub(self, worker_key: WorkerKey, home: Shard) -> None:
        """Take from a worker what it was handed and does not hold, should only its own side have become durable: it
        would count against the worker's quota for as long as the worker lives."""
        worker = home.workers.get(worker_key)
        if worker is None or not worker.standing.handed:
            return
        for id in worker.standing.handed:
            held = Held(worker_key, id, worker.bindings[id].attempt)
            if self._elsewhere is not None and not self._custody.is_here(
                worker_key.namespace, id.workflow_id
            ):
                self._to_scrub[held] = None
                self._ask_soon()
                continue
            try:
                if not holds(self._node, held):
                    self._take_from(held)
            except Unavailable:
                continue

    def _take_from(self, held: Held) -> None:
        self._custody.unbind(
            ActivityKey(held.worker.namespace, *held.id), held.worker.instance_key, held.attempt, taken=True
        )

    # -- asking other nodes

    def _ask_soon(self) -> None:
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._ask())

    async def _ask(self) -> None:
        """Everything that came up in one turn, in as few calls as possible."""
        assert self._elsewhere is not None
        while self._to_verify:
            some = [self._to_verify.popitem() for _ in range(min(len(self._to_verify), ASKED_AT_ONCE))]
            questions = [(WorkerKey(key.namespace, holder.worker), key.id) for key, holder in some]
            answers = await self._elsewhere.look_at_many(questions)
            for (key, holder), (answered, seen) in zip(some, answers, strict=True):
                if answered:
                    self._heard_of(key, holder, seen)
        while self._to_scrub:
            attempts = [self._to_scrub.popitem()[0] for _ in range(min(len(self._to_scrub), ASKED_AT_ONCE))]
            for held in await self._elsewhere.not_held(attempts):
                self._take_from(held)

    def _heard_of(self, key: ActivityKey, holder: Holder, seen: Glance | None) -> None:
        try:
            shard = self._custody.shard(key)
        except Unavailable:
            return
        activity = shard.activities.get(key)
        if activity is None or activity.state is not ActivityState.STARTED:
            return
        if (activity.worker, activity.epoch, activity.attempt) != holder:
            return
        next_ms = self._judge(key, shard, activity, seen)
        if next_ms is not None:
            if len(self._next_look) >= DOUBTS_MAX:
                self._next_look.clear()  # asked again, once too often
            self._next_look[key] = next_ms

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
