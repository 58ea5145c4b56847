"""One worker's life as its heart's thread sees it: the pulse, the fence, the stream, and what hangs on them.

Methods that say so may be called from any thread; they leave word and return a future. Everything else runs on the
ticker's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeAlias
from uuid import uuid4

from liveness.sdk import fence
from liveness.sdk.connection import Connection, promise
from liveness.sdk.errors import (
    AlreadyBound,
    CallFailed,
    LivenessSdkError,
    WorkerStopped,
)
from liveness.sdk.fence import Fence
from liveness.sdk.holding import NOT_CONFIRMED, Hold
from liveness.sdk.pulse import Heard, Loss, Pulse
from liveness.sdk.refusals import Refusal, worker_error
from liveness.sdk.sentry import Sentry
from liveness.sdk.values import ActivityRef, AttemptKey, ms_of, ref_of, ref_of_task
from liveness.v1.activity_pb2 import ActivityTask
from liveness.v1.service_pb2 import AttachResponse
from liveness.v1.worker_pb2 import WORKER_STATE_ACTIVE, WorkerHeartbeat

BEATS_PER_GRACE = 3
ATTACH_AGAIN_MS = 200
LEFT = "the worker has ended"

log = logging.getLogger("liveness.sdk")

MakeKey: TypeAlias = Callable[[], str]


@dataclass(frozen=True, slots=True)
class Orders:
    """What the server wants of the worker, besides its work."""

    pause: bool = False
    drain: bool = False
    drain_limit_ms: int | None = None
    """What was left of the limit when the order came."""


class Life:
    def __init__(
        self,
        connection: Connection,
        namespace: str,
        profile: WorkerHeartbeat,
        new_key: MakeKey | None,
        grace_ms: int | None,
    ) -> None:
        """`profile` is what all heartbeats have in common but key and session; `new_key` is None if the program chose
        the key that stands in it."""
        self.namespace = namespace
        self.started: Future[None] = promise()
        self.error: LivenessSdkError | None = None
        """Why it ended, if it was not asked to."""
        self.orders = Orders()
        self._connection = connection
        self._ticker = connection.ticker
        self._profile = profile
        self._new_key = new_key
        self._grace_ms = grace_ms
        self._sentry = Sentry(connection.ticker, self._shut_out, self._changed)
        self._holds: dict[AttemptKey, Hold] = {}
        self._binding: dict[AttemptKey, Future[None]] = {}
        self._empty: list[Future[None]] = []
        self._listeners: list[Callable[[], None]] = []
        self._attach_wanted = True
        self._settled: Future[None] | None = None
        self._left = False
        self.pulse = Pulse(self._incarnation(), self._ticker.now_ms())

    # -- from any thread

    @property
    def key(self) -> str:
        return self.pulse.key

    @property
    def session_id(self) -> str:
        return self.pulse.session_id

    def is_trusted(self) -> bool:
        return self._connection.clock.monotonic_ms() < self._sentry.deadline_ms

    def begin(self) -> Future[None]:
        """Settled when the first heartbeat was acknowledged."""
        self._connection.on_breakdown[id(self)] = self._break_down
        self._ticker.post(lambda: self._connection.heart.join(self))
        return self.started

    def bind(self, hold: Hold) -> Future[None]:
        """Settled when the binding is durable."""
        outcome: Future[None] = promise()
        self._ticker.post(lambda: self._bind(hold, outcome))
        return outcome

    def adopt(self, task: ActivityTask) -> Future[Hold | None]:
        """Take in what the server handed out; None if it came too late."""
        outcome: Future[Hold | None] = promise()
        self._ticker.post(lambda: outcome.set_result(self.adopt_now(task)))
        return outcome

    def end(self, hold: Hold) -> None:
        """Its body has ended and the server does not know yet."""
        self._ticker.post(lambda: self._end(hold, forget=False))

    def ending(self, ref: ActivityRef) -> None:
        """Its body has ended and the server is about to be told. To be called before that."""
        self._ticker.post(lambda: self.pulse.ending(ref))

    def forget(self, hold: Hold, *, succeeded: bool | None = None, error: str = "") -> None:
        """Its body has ended and the server knows."""
        if succeeded is not None:
            self._ticker.post(
                lambda: self.pulse.count(successes=succeeded, errors=not succeeded, last_error=error)
            )
        self._ticker.post(lambda: self._end(hold, forget=True))

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have `listener` called, on the ticker's thread, when something changed. Returns how to take that back."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def observe_lag(self, lag_ms: int) -> None:
        self._ticker.post(lambda: self.pulse.observe_lag(lag_ms))

    def beat_now(self) -> None:
        """Something is amiss that the next acknowledgement would show."""
        self._ticker.post(lambda: self._hasten(0))

    def settle(self) -> Future[None]:
        """Settled when the server was told everything and no heartbeat is under way; after that there are no more."""
        outcome: Future[None] = promise()
        self._ticker.post(lambda: self._settle(outcome))
        return outcome

    def leave(self) -> None:
        """No more heartbeats; the end of the stream shall mean nothing."""
        self._ticker.post(lambda: self._leave(None))

    def emptied(self) -> Future[None]:
        """Settled when nothing is held, or about to be."""
        outcome: Future[None] = promise()
        self._ticker.post(lambda: self._when_empty(outcome))
        return outcome

    def give_up_all(self, reason: str) -> None:
        """Bodies that run are told to stop."""
        self._ticker.post(lambda: self._give_up_all(reason))

    @property
    def ended(self) -> bool:
        return self._left

    @property
    def holds(self) -> tuple[Hold, ...]:
        return tuple(self._holds.values())

    # -- holding

    def _bind(self, hold: Hold, outcome: Future[None]) -> None:
        if self._left:
            outcome.set_exception(self.error or WorkerStopped(worker=self.key))
            return
        key = hold.ref.key
        if key in self._holds or self.pulse.knows(key):
            outcome.set_exception(AlreadyBound(activity=hold.ref))
            return
        self._holds[key] = hold
        self._binding[key] = outcome
        self.pulse.bind(hold.ref, self._ticker.now_ms())
        self._connection.heart.stir(self.namespace)

    def adopt_now(self, task: ActivityTask) -> Hold | None:
        ref, now_ms = ref_of_task(task), self._ticker.now_ms()
        if self._left or ref.key in self._holds:
            return None
        welcome, losses = self.pulse.adopt(ref, task.lease_epoch, now_ms)
        self._lose(losses)
        if welcome and self._sentry.shut:
            self.pulse.unbind(ref, now_ms)
            welcome = False
        self._connection.heart.stir(self.namespace)
        if not welcome:
            return None
        hold = Hold(self, ref)
        hold.epoch = task.lease_epoch
        self._holds[ref.key] = hold
        return hold

    def _end(self, hold: Hold, *, forget: bool) -> None:
        key = hold.ref.key
        if self._holds.get(key) is not hold:
            return
        self._binding.pop(key, None)
        self._drop(hold)
        now_ms = self._ticker.now_ms()
        if forget:
            self.pulse.forget(hold.ref, now_ms)
        else:
            self.pulse.unbind(hold.ref, now_ms)
        self._connection.heart.stir(self.namespace)
        self._changed()

    def _drop(self, hold: Hold) -> None:
        del self._holds[hold.ref.key]
        if not self._holds:
            empty, self._empty = self._empty, []
            for outcome in empty:
                outcome.set_result(None)

    def _when_empty(self, outcome: Future[None]) -> None:
        if self._holds:
            self._empty.append(outcome)
        else:
            outcome.set_result(None)

    def _give_up_all(self, reason: str) -> None:
        for hold in list(self._holds.values()):
            hold.lost.set(reason)
            self._not_bound(hold, hold.loss())

    def _lose(self, losses: tuple[Loss, ...]) -> None:
        for ref, reason, by_lease in losses:
            hold = self._holds.get(ref.key)
            if hold is None:
                self.pulse.unbind(ref, self._ticker.now_ms())
                continue
            if hold.lost.set(reason, by_lease=by_lease):
                log.warning("%s: lost %s: %s", self.key, ref, reason)
            self._not_bound(hold, hold.loss())

    def _not_bound(self, hold: Hold, error: LivenessSdkError) -> None:
        outcome = self._binding.pop(hold.ref.key, None)
        if outcome is not None:
            outcome.set_exception(error)

    # -- what the heart hears

    def heard(self, heard: Heard) -> None:
        if self._left:
            return
        now_ms = self._ticker.now_ms()
        if heard.fatal is not None:
            self._doomed(heard.fatal)
            return
        self._lose(heard.lost)
        for ref, error in heard.not_bound:
            hold = self._holds.get(ref.key)
            if hold is not None:
                self._not_bound(hold, error)
                self._drop(hold)
        if heard.ended:
            self._sentry.move(fence.ended(self._sentry.fence))
        if heard.lease_ms:
            self._sentry.move(fence.renewed(self._sentry.fence, heard.sent_ms, heard.lease_ms))
            self._order(Orders(heard.pause, heard.drain, self.orders.drain_limit_ms))
        for ref in heard.held:
            hold = self._holds.get(ref.key)
            if hold is not None:
                hold.epoch = self.pulse.epoch
        if heard.lease_ms and self._sentry.shut:
            self.pulse.hasten(now_ms)  # so late an answer proves nothing about now
        elif heard.lease_ms:
            self._confirmed()
        self._check_settled()

    def _confirmed(self) -> None:
        """The lease is certain for a while. Those who wait for a binding that the server has may begin."""
        if not self.started.done():
            self.started.set_result(None)
        if self._attach_wanted:
            self._attach_wanted = False
            self._connection.stream.attach(self)
        for key, outcome in list(self._binding.items()):
            if self._holds[key].epoch:
                del self._binding[key]
                outcome.set_result(None)

    def _doomed(self, refusal: Refusal) -> None:
        if refusal.reason == "WORKER_CLEANED_UP" and self._new_key is not None:
            log.warning("worker %s was cleaned up; going on under a new key", self.key)
            self._connection.stream.detach(self)
            self._lose(self.pulse.lose_all("the worker was cleaned up"))
            self.pulse = self.pulse.start_over(self._incarnation(), self._ticker.now_ms())
            self._attach_wanted = True
            self._sentry.move(Fence())
            self._connection.heart.stir(self.namespace)
            self._changed()
            return
        self._leave(self._error_of(refusal, "RecordWorkerHeartbeats"))

    def _error_of(self, refusal: Refusal, call: str) -> LivenessSdkError:
        place = {"address": self._connection.address, "namespace": self.namespace}
        return worker_error(refusal, call, **place, worker=self.key)

    def _shut_out(self) -> None:
        """The fence has shut."""
        self._lose(self.pulse.lose_all(NOT_CONFIRMED))
        self._changed()

    # -- the stream

    @property
    def grace_ms(self) -> int | None:
        return None if self._grace_ms is None else min(self._grace_ms, self.pulse.lease_ms)

    def asking(self) -> None:
        if self.grace_ms is not None:
            now_ms = self._ticker.now_ms()
            self._sentry.move(fence.exposed(self._sentry.fence, self.grace_ms, now_ms))

    def attached(self, grace_ms: int | None, sent_ms: int) -> None:
        now_ms = self._ticker.now_ms()
        self.pulse.quicken(None, now_ms)
        self._sentry.move(fence.attached(self._sentry.fence, grace_ms, sent_ms))
        self._changed()

    def answered(self, sent_ms: int) -> None:
        self._sentry.move(fence.answered(self._sentry.fence, sent_ms))

    def ordered(self, orders: AttachResponse.Orders) -> None:
        if self._left or orders.lease_epoch < self.pulse.epoch:
            return
        now_ms = self._ticker.now_ms()
        if orders.state != WORKER_STATE_ACTIVE:
            if orders.lease_epoch == self.pulse.epoch:
                self._sentry.move(fence.ended(self._sentry.fence))
                self._hasten(0)
            return
        self._lose(self.pulse.take_away(map(ref_of, orders.cancel_activities), now_ms))
        limit_ms = ms_of(orders.drain_remaining) if orders.HasField("drain_remaining") else None
        self._order(Orders(orders.pause, orders.drain, limit_ms))

    def detached(self, *, harmless: bool) -> None:
        if self._left:
            return
        if harmless:
            self._sentry.move(fence.sheltered(self._sentry.fence))
            self._attach_wanted = True
            self._hasten(ATTACH_AGAIN_MS)
        if self._sentry.fence.grace_ms is not None and self.grace_ms is not None:
            self.pulse.quicken(self.grace_ms // BEATS_PER_GRACE, self._ticker.now_ms())
            self._connection.heart.stir(self.namespace)

    def not_attached(self, refusal: Refusal) -> None:
        if self._left:
            return
        if refusal.code.name == "UNIMPLEMENTED":
            self._leave(self._error_of(refusal, "Attach"))
            return
        log.debug("%s was not attached: %s", self.key, refusal)
        # Whatever is wrong with the worker, its next heartbeat mends it or tells.
        self._attach_wanted = True
        self._hasten(ATTACH_AGAIN_MS)

    def _order(self, orders: Orders) -> None:
        if orders != self.orders:
            self.orders = orders
            self._changed()

    # -- the end

    def _settle(self, outcome: Future[None]) -> None:
        self._settled = outcome
        self._hasten(0)
        self._check_settled()

    def _check_settled(self) -> None:
        if self._settled is not None and (self._left or self.pulse.is_settled):
            self._settled.set_result(None)
            self._settled = None
            self._leave(None)

    def _leave(self, error: LivenessSdkError | None) -> None:
        if self._left:
            return
        self._left = True
        self.error = error
        self._connection.on_breakdown.pop(id(self), None)
        self._connection.heart.leave(self)
        self._connection.stream.detach(self)
        reason = str(error) if error is not None else LEFT
        self._sentry.stand_down()
        self._lose(self.pulse.lose_all(reason))
        for key, outcome in list(self._binding.items()):
            del self._binding[key]
            self._holds[key].lost.set(reason)
            outcome.set_exception(error or WorkerStopped(worker=self.key))
        if not self.started.done():
            self.started.set_exception(error or WorkerStopped(worker=self.key))
        self._check_settled()
        self._changed()

    def _break_down(self) -> None:
        """The ticker's thread died of a bug; this is its last act."""
        failure = CallFailed(call="the SDK's own thread", detail="see the traceback", code="BUG")
        self._leave(failure)

    # -- inside

    def _incarnation(self) -> WorkerHeartbeat:
        """A new session, under the program's key or a new one."""
        message = WorkerHeartbeat()
        message.CopyFrom(self._profile)
        if self._new_key is not None:
            message.worker_instance_key = self._new_key()
        message.session_id = uuid4().hex
        return message

    def _hasten(self, wait_ms: int) -> None:
        self.pulse.hasten(self._ticker.now_ms() + wait_ms)
        self._connection.heart.stir(self.namespace)

    def _changed(self) -> None:
        for listener in list(self._listeners):
            listener()
