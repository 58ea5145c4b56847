"""One worker's session: its heartbeats, local lease, stream and held attempts.

Methods in the section "from any thread" post their work to the scheduler's thread, and return a future if there is a
result. Everything else runs on the scheduler's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeAlias
from uuid import uuid4

from liveness.sdk import local_lease
from liveness.sdk.component_environment import ComponentEnvironment
from liveness.sdk.connection import Connection, uncancellable_future
from liveness.sdk.errors import (
    AlreadyBound,
    CallFailed,
    LivenessSdkError,
    WorkerStopped,
)
from liveness.sdk.heartbeat_state import HeartbeatOutcome, HeartbeatState, Loss
from liveness.sdk.held_attempt import LEASE_NOT_CONFIRMED, HeldAttempt
from liveness.sdk.lease_watchdog import LeaseWatchdog
from liveness.sdk.local_lease import LocalLease
from liveness.sdk.rpc_failures import RpcFailure, worker_error
from liveness.sdk.values import ActivityRef, AttemptKey, duration_to_ms, ref_from_proto, ref_from_task
from liveness.v1.activity_pb2 import ActivityTask
from liveness.v1.service_pb2 import AttachResponse
from liveness.v1.worker_pb2 import WORKER_STATE_ACTIVE, WorkerHeartbeat

HEARTBEATS_PER_GRACE = 3
REATTACH_DELAY_MS = 200
ENDED_REASON = "the worker has ended"

log = logging.getLogger("liveness.sdk")

MakeKey: TypeAlias = Callable[[], str]


@dataclass(frozen=True, slots=True)
class Orders:
    """The operator's standing orders to the worker."""

    pause: bool = False
    drain: bool = False
    drain_limit_ms: int | None = None
    """The time left for the drain when the order arrived."""


class WorkerSession:
    def __init__(
        self,
        connection: Connection,
        namespace: str,
        profile: WorkerHeartbeat,
        make_key: MakeKey | None,
        grace_ms: int | None,
        component: ComponentEnvironment | None = None,
    ) -> None:
        """`profile`: the fields that all heartbeats share, without the session. `make_key` generates an instance key; None
        if the program chose the key that `profile` contains. `component`: the supervised process whose session this one
        continues; None if it has a session of its own."""
        self.namespace = namespace
        self.started: Future[None] = uncancellable_future()
        self.error: LivenessSdkError | None = None
        """Why the session ended, unless the program stopped it."""
        self.orders = Orders()
        self._connection = connection
        self._scheduler = connection.scheduler
        self._profile = profile
        self._make_key = make_key
        self._component = component
        self._grace_ms = grace_ms
        self._watchdog = LeaseWatchdog(connection.scheduler, self._on_lease_expired, self._notify_listeners)
        self._held_attempts: dict[AttemptKey, HeldAttempt] = {}
        self._pending_binds: dict[AttemptKey, Future[None]] = {}
        self._empty_waiters: list[Future[None]] = []
        self._listeners: list[Callable[[], None]] = []
        self._wants_attach = True
        self._flushed: Future[None] | None = None
        self._has_ended = False
        self._logged_epoch = 0
        """The lease epoch of which the log tells."""
        self.heartbeat_state = HeartbeatState(self._new_session_profile(), self._scheduler.now_ms())
        if component is not None:
            self.heartbeat_state.sequence = component.first_sequence - 1

    # -- from any thread

    @property
    def key(self) -> str:
        return self.heartbeat_state.key

    @property
    def session_id(self) -> str:
        return self.heartbeat_state.session_id

    def is_trusted(self) -> bool:
        return self._connection.clock.monotonic_ms() < self._watchdog.deadline_ms

    def start(self) -> Future[None]:
        """Start sending heartbeats. The future completes when the first one is acknowledged."""
        self._connection.on_thread_failure[id(self)] = self._on_thread_failure
        self._scheduler.call_soon(lambda: self._connection.heartbeat_sender.join(self))
        return self.started

    def bind(self, held_attempt: HeldAttempt) -> Future[None]:
        """Bind an attempt. The future completes when the server has stored the binding."""
        outcome: Future[None] = uncancellable_future()
        self._scheduler.call_soon(lambda: self._bind(held_attempt, outcome))
        return outcome

    def accept(self, task: ActivityTask) -> Future[HeldAttempt | None]:
        """Take an activity that the server handed out; None if it arrived too late."""
        outcome: Future[HeldAttempt | None] = uncancellable_future()
        self._scheduler.call_soon(lambda: outcome.set_result(self.accept_now(task)))
        return outcome

    def unbind(self, held_attempt: HeldAttempt) -> None:
        """The body has ended, and the server does not know it yet."""
        self._scheduler.call_soon(lambda: self._remove(held_attempt, forget=False))

    def mark_reporting(self, ref: ActivityRef) -> None:
        """The body has ended and its outcome is about to be reported. Called before the report is sent."""
        self._scheduler.call_soon(lambda: self.heartbeat_state.mark_reporting(ref))

    def forget(self, held_attempt: HeldAttempt, *, succeeded: bool | None = None, error: str = "") -> None:
        """The body has ended, and the server has recorded it."""
        if succeeded is not None:
            self.count(successes=succeeded, errors=not succeeded, last_error=error)
        if succeeded:
            log.info("%s: completed %s", self.key, held_attempt.ref)
        self._scheduler.call_soon(lambda: self._remove(held_attempt, forget=True))

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` on the scheduler's thread after each change. Returns a function that unsubscribes."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def observe_lag(self, lag_ms: int) -> None:
        self._scheduler.call_soon(lambda: self.heartbeat_state.observe_lag(lag_ms))

    def describe(self, change: Callable[[WorkerHeartbeat], None]) -> None:
        """Change what the worker says about itself, in this session and in those that follow it."""
        self._scheduler.call_soon(lambda: self._describe(change))

    def count(self, *, successes: int, errors: int, last_error: str) -> None:
        """Add to the counters of the worker. They go with the next heartbeat."""
        self._scheduler.call_soon(
            lambda: self.heartbeat_state.count(successes=successes, errors=errors, last_error=last_error)
        )

    def send_heartbeat_now(self) -> None:
        """Send a heartbeat at once, because its reply would show what is wrong."""
        self._scheduler.call_soon(lambda: self._send_within(0))

    def flush(self) -> Future[None]:
        """Report all changes, then stop the heartbeats. The future completes when no heartbeat is pending."""
        outcome: Future[None] = uncancellable_future()
        self._scheduler.call_soon(lambda: self._flush(outcome))
        return outcome

    def stop(self) -> None:
        """Stop the heartbeats, and detach from the stream so that its end does not affect the lease."""
        self._scheduler.call_soon(lambda: self._stop(None))

    def when_empty(self) -> Future[None]:
        """The future completes when no attempt is held or being bound."""
        outcome: Future[None] = uncancellable_future()
        self._scheduler.call_soon(lambda: self._add_empty_waiter(outcome))
        return outcome

    def cancel_all(self, reason: str) -> None:
        """Tell all running bodies to stop."""
        self._scheduler.call_soon(lambda: self._cancel_all(reason))

    @property
    def has_ended(self) -> bool:
        return self._has_ended

    @property
    def held_attempts(self) -> tuple[HeldAttempt, ...]:
        return tuple(self._held_attempts.values())

    # -- holding

    def _bind(self, held_attempt: HeldAttempt, outcome: Future[None]) -> None:
        if self._has_ended:
            outcome.set_exception(self.error or WorkerStopped(worker=self.key))
            return
        key = held_attempt.ref.key
        if key in self._held_attempts or self.heartbeat_state.is_tracked(key):
            outcome.set_exception(AlreadyBound(activity=held_attempt.ref))
            return
        self._held_attempts[key] = held_attempt
        self._pending_binds[key] = outcome
        self.heartbeat_state.bind(held_attempt.ref, self._scheduler.now_ms())
        self._connection.heartbeat_sender.schedule(self.namespace)

    def accept_now(self, task: ActivityTask) -> HeldAttempt | None:
        ref, now_ms = ref_from_task(task), self._scheduler.now_ms()
        if self._has_ended or ref.key in self._held_attempts:
            return None
        accepted, losses = self.heartbeat_state.accept(ref, task.lease_epoch, now_ms)
        self._apply_losses(losses)
        if accepted and self._watchdog.is_expired:
            self.heartbeat_state.unbind(ref, now_ms)
            accepted = False
        self._connection.heartbeat_sender.schedule(self.namespace)
        if not accepted:
            return None
        held_attempt = HeldAttempt(self, ref)
        held_attempt.epoch = task.lease_epoch
        self._held_attempts[ref.key] = held_attempt
        return held_attempt

    def _remove(self, held_attempt: HeldAttempt, *, forget: bool) -> None:
        key = held_attempt.ref.key
        if self._held_attempts.get(key) is not held_attempt:
            return
        self._pending_binds.pop(key, None)
        self._drop(held_attempt)
        now_ms = self._scheduler.now_ms()
        if forget:
            self.heartbeat_state.forget(held_attempt.ref, now_ms)
        else:
            self.heartbeat_state.unbind(held_attempt.ref, now_ms)
        self._connection.heartbeat_sender.schedule(self.namespace)
        self._notify_listeners()

    def _drop(self, held_attempt: HeldAttempt) -> None:
        del self._held_attempts[held_attempt.ref.key]
        if not self._held_attempts:
            waiters, self._empty_waiters = self._empty_waiters, []
            for outcome in waiters:
                outcome.set_result(None)

    def _add_empty_waiter(self, outcome: Future[None]) -> None:
        if self._held_attempts:
            self._empty_waiters.append(outcome)
        else:
            outcome.set_result(None)

    def _cancel_all(self, reason: str) -> None:
        for held_attempt in list(self._held_attempts.values()):
            held_attempt.lost.set(reason)
            self._fail_bind(held_attempt, held_attempt.loss())

    def _apply_losses(self, losses: tuple[Loss, ...]) -> None:
        for ref, reason, by_lease in losses:
            held_attempt = self._held_attempts.get(ref.key)
            if held_attempt is None:
                self.heartbeat_state.unbind(ref, self._scheduler.now_ms())
                continue
            if held_attempt.lost.set(reason, by_lease=by_lease):
                log.warning("%s: lost %s: %s", self.key, ref, reason)
            self._fail_bind(held_attempt, held_attempt.loss())

    def _fail_bind(self, held_attempt: HeldAttempt, error: LivenessSdkError) -> None:
        outcome = self._pending_binds.pop(held_attempt.ref.key, None)
        if outcome is not None:
            outcome.set_exception(error)

    # -- heartbeat replies

    def apply_outcome(self, outcome: HeartbeatOutcome) -> None:
        if self._has_ended:
            return
        now_ms = self._scheduler.now_ms()
        if outcome.fatal is not None:
            self._on_fatal_failure(outcome.fatal)
            return
        self._apply_losses(outcome.lost)
        for ref, error in outcome.rejected_binds:
            held_attempt = self._held_attempts.get(ref.key)
            if held_attempt is not None:
                self._fail_bind(held_attempt, error)
                self._drop(held_attempt)
        if outcome.lease_ended:
            self._watchdog.update(local_lease.lease_ended(self._watchdog.local_lease))
        if outcome.lease_ms:
            self._watchdog.update(
                local_lease.renewed(self._watchdog.local_lease, outcome.sent_ms, outcome.lease_ms)
            )
            self._apply_orders(Orders(outcome.pause, outcome.drain, self.orders.drain_limit_ms))
        for ref in outcome.held:
            held_attempt = self._held_attempts.get(ref.key)
            if held_attempt is not None:
                held_attempt.epoch = self.heartbeat_state.epoch
        if outcome.lease_ms and self._watchdog.is_expired:
            self.heartbeat_state.send_by(
                now_ms
            )  # the reply came too late to prove that the lease still holds
        elif outcome.lease_ms:
            self._on_lease_confirmed()
        self._check_flushed()

    def _on_lease_confirmed(self) -> None:
        """The lease is valid again for a while: bodies whose binding the server has stored may begin."""
        if self._logged_epoch != self.heartbeat_state.epoch:
            self._log_registration()
        if not self.started.done():
            self.started.set_result(None)
        if self._wants_attach:
            self._wants_attach = False
            self._connection.stream.attach(self)
        for key, outcome in list(self._pending_binds.items()):
            if self._held_attempts[key].epoch:
                del self._pending_binds[key]
                outcome.set_result(None)

    def _log_registration(self) -> None:
        state = self.heartbeat_state
        if self._logged_epoch:
            log.info("worker %s is registered again, under lease epoch %d", self.key, state.epoch)
        else:
            log.info(
                "worker %s is registered in namespace %s at %s; its lease is %g s",
                self.key,
                self.namespace,
                self._connection.address,
                state.lease_ms / 1_000,
            )
        self._logged_epoch = state.epoch

    def _on_fatal_failure(self, rpc_failure: RpcFailure) -> None:
        # A server that refuses a given key although the session has just begun knows no incarnations.
        can_begin_anew = self._make_key is not None or self.heartbeat_state.epoch > 0
        # The next session of a component begins with its next process.
        can_begin_anew = can_begin_anew and self._component is None
        if rpc_failure.reason == "WORKER_CLEANED_UP" and can_begin_anew:
            log.warning("worker %s was cleaned up; continuing with a new session", self.key)
            self._connection.stream.detach(self)
            self._apply_losses(self.heartbeat_state.lose_all("the worker was cleaned up"))
            self.heartbeat_state = self.heartbeat_state.restart(
                self._new_session_profile(), self._scheduler.now_ms()
            )
            self._wants_attach = True
            self._watchdog.update(LocalLease())
            self._connection.heartbeat_sender.schedule(self.namespace)
            self._notify_listeners()
            return
        self._stop(self._worker_error(rpc_failure, "RecordWorkerHeartbeats"))

    def _worker_error(self, rpc_failure: RpcFailure, call: str) -> LivenessSdkError:
        target = {"address": self._connection.address, "namespace": self.namespace}
        return worker_error(rpc_failure, call, **target, worker=self.key)

    def _on_lease_expired(self) -> None:
        """The local deadline has passed: give up everything that is held."""
        self._apply_losses(self.heartbeat_state.lose_all(LEASE_NOT_CONFIRMED))
        self._notify_listeners()

    # -- the stream

    @property
    def grace_ms(self) -> int | None:
        return None if self._grace_ms is None else min(self._grace_ms, self.heartbeat_state.lease_ms)

    def on_attach_requested(self) -> None:
        if self.grace_ms is not None:
            now_ms = self._scheduler.now_ms()
            self._watchdog.update(
                local_lease.attach_requested(self._watchdog.local_lease, self.grace_ms, now_ms)
            )

    def on_attached(self, grace_ms: int | None, sent_ms: int) -> None:
        now_ms = self._scheduler.now_ms()
        self.heartbeat_state.limit_interval(None, now_ms)
        self._watchdog.update(local_lease.attached(self._watchdog.local_lease, grace_ms, sent_ms))
        self._notify_listeners()

    def ping_answered(self, sent_ms: int) -> None:
        self._watchdog.update(local_lease.ping_answered(self._watchdog.local_lease, sent_ms))

    def on_orders(self, orders: AttachResponse.Orders) -> None:
        if self._has_ended or orders.lease_epoch < self.heartbeat_state.epoch:
            return
        now_ms = self._scheduler.now_ms()
        if orders.state != WORKER_STATE_ACTIVE:
            if orders.lease_epoch == self.heartbeat_state.epoch:
                self._watchdog.update(local_lease.lease_ended(self._watchdog.local_lease))
                self._send_within(0)
            return
        self._apply_losses(self.heartbeat_state.revoke(map(ref_from_proto, orders.cancel_activities), now_ms))
        limit_ms = duration_to_ms(orders.drain_remaining) if orders.HasField("drain_remaining") else None
        self._apply_orders(Orders(orders.pause, orders.drain, limit_ms))

    def on_detached(self, *, closed_by_server: bool) -> None:
        if self._has_ended:
            return
        if closed_by_server:
            self._watchdog.update(local_lease.stream_closed_by_server(self._watchdog.local_lease))
            self._wants_attach = True
            self._send_within(REATTACH_DELAY_MS)
        if self._watchdog.local_lease.grace_ms is not None and self.grace_ms is not None:
            self.heartbeat_state.limit_interval(
                self.grace_ms // HEARTBEATS_PER_GRACE, self._scheduler.now_ms()
            )
            self._connection.heartbeat_sender.schedule(self.namespace)

    def on_server_ended(self) -> None:
        if not self._has_ended:
            log.info("the server of %s has ended; its lease goes on", self.key)
            now_ms = self._scheduler.now_ms()
            self._watchdog.update(local_lease.server_ended(self._watchdog.local_lease, now_ms))

    def on_attach_failed(self, rpc_failure: RpcFailure) -> None:
        if self._has_ended:
            return
        if rpc_failure.code.name in ("UNIMPLEMENTED", "PERMISSION_DENIED"):
            self._stop(self._worker_error(rpc_failure, "Attach"))
            return
        log.debug("%s was not attached: %s", self.key, rpc_failure)
        # The reply to the next heartbeat repairs the worker's state or names the problem.
        self._wants_attach = True
        self._send_within(REATTACH_DELAY_MS)

    def _apply_orders(self, orders: Orders) -> None:
        if orders != self.orders:
            self._log_orders(orders)
            self.orders = orders
            self._notify_listeners()

    def _log_orders(self, orders: Orders) -> None:
        if orders.drain and not self.orders.drain:
            limit_ms = orders.drain_limit_ms
            limit = "" if limit_ms is None else f" within {limit_ms / 1_000:g} s"
            log.info("worker %s is drained by an operator: it finishes its activities%s", self.key, limit)
        elif self.orders.drain and not orders.drain:
            log.info("worker %s is not drained any more", self.key)
        if orders.pause != self.orders.pause:
            done = "paused: it takes no new activities" if orders.pause else "resumed"
            log.info("worker %s is %s", self.key, done)

    # -- stopping

    def _flush(self, outcome: Future[None]) -> None:
        self._flushed = outcome
        self._send_within(0)
        self._check_flushed()

    def _check_flushed(self) -> None:
        if self._flushed is not None and (self._has_ended or self.heartbeat_state.is_flushed):
            self._flushed.set_result(None)
            self._flushed = None
            self._stop(None)

    def _stop(self, error: LivenessSdkError | None) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        self.error = error
        self._connection.on_thread_failure.pop(id(self), None)
        self._connection.heartbeat_sender.leave(self)
        self._connection.stream.detach(self)
        if error is not None:
            log.error("worker %s cannot go on: %s", self.key, error)
        reason = str(error) if error is not None else ENDED_REASON
        self._watchdog.stop()
        self._apply_losses(self.heartbeat_state.lose_all(reason))
        for key, outcome in list(self._pending_binds.items()):
            del self._pending_binds[key]
            self._held_attempts[key].lost.set(reason)
            outcome.set_exception(error or WorkerStopped(worker=self.key))
        if not self.started.done():
            self.started.set_exception(error or WorkerStopped(worker=self.key))
        self._check_flushed()
        self._notify_listeners()

    def _on_thread_failure(self) -> None:
        """The scheduler's thread died of a bug; this runs as its last action."""
        failure = CallFailed(call="the SDK's own thread", detail="see the traceback", code="BUG")
        self._stop(failure)

    # -- small steps

    def _new_session_profile(self) -> WorkerHeartbeat:
        """The profile of a new session, with the program's key or a generated one."""
        message = WorkerHeartbeat()
        message.CopyFrom(self._profile)
        if self._component is not None:
            message.worker_instance_key, message.session_id = (
                self._component.component_id,
                self._component.session_id,
            )
            return message
        if self._make_key is not None:
            message.worker_instance_key = self._make_key()
        else:
            message.new_incarnation = True
        message.session_id = uuid4().hex
        return message

    def _describe(self, change: Callable[[WorkerHeartbeat], None]) -> None:
        change(self._profile)
        self.heartbeat_state.describe(change, self._scheduler.now_ms())
        self._connection.heartbeat_sender.schedule(self.namespace)

    def _send_within(self, wait_ms: int) -> None:
        self.heartbeat_state.send_by(self._scheduler.now_ms() + wait_ms)
        self._connection.heartbeat_sender.schedule(self.namespace)

    def _notify_listeners(self) -> None:
        for listener in list(self._listeners):
            listener()
