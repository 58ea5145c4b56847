"""The heartbeat protocol of one worker: which heartbeat to send next, and what a reply means.

This is a state machine without clock, thread or network. The caller reports what the program does (`bind`, `accept`,
`unbind`, `mark_reporting`, `forget`), asks when to send (`due_ms`) and what to send (`send`), and reports the result
(`handle_reply`, `handle_failure`, `handle_no_reply`). The rules:

- At most one heartbeat is pending. Changes that happen meanwhile go into the next one.
- A heartbeat without a reply is sent again unchanged. The next sequence number follows only after a reply: the server
  applies each number once, so no change is applied twice or out of order.
- A lost attempt is reported as unbound only after its body has ended (`unbind`), so that the server can tell "told to
  stop" from "has stopped".
- No heartbeat declares an attempt both bound and unbound, because the server reads that as "started and finished".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from liveness.sdk.errors import BindingRefused, InvalidArgument, LivenessSdkError
from liveness.sdk.rpc_failures import RpcFailure
from liveness.sdk.values import (
    ActivityRef,
    AttemptKey,
    duration_to_ms,
    ms_to_duration,
    ref_from_proto,
    ref_to_proto,
)
from liveness.v1.worker_pb2 import (
    WORKER_STATE_ACTIVE,
    HeartbeatResult,
    WorkerHeartbeat,
)

BINDING_CHANGES_MAX = 200
FULL_BINDINGS_MAX = 1_000
COALESCE_MS = 100
"""How long a change without a waiting caller is held back, to share a heartbeat with other changes."""
EARLY_DIVISOR = 10
"""A heartbeat may be sent this fraction of its interval early, in a call with others."""
BACKOFF_MS = (50, 1_000)
LAST_ERROR_CHARS_MAX = 1_000
CALL_TIMEOUT_MS_MAX = 5_000
FAILURE_DELAY_MS = 1_000

LEASE_ENDED = "the lease ended on the server, which has given the work away"
REVOKED = "the server took it away"
SUPERSEDED = "a later attempt was given out"


class Loss(NamedTuple):
    ref: ActivityRef
    reason: str
    by_lease: bool


class RejectedBind(NamedTuple):
    ref: ActivityRef
    error: LivenessSdkError


@dataclass(frozen=True, slots=True)
class HeartbeatOutcome:
    """The meaning of a reply."""

    sent_ms: int = 0
    """When the answered heartbeat was first sent."""
    lease_ms: int = 0
    """0 if the lease was not renewed."""
    lease_ended: bool = False
    """The server ended the lease; the next heartbeat begins a new one."""
    held: tuple[ActivityRef, ...] = ()
    lost: tuple[Loss, ...] = ()
    rejected_binds: tuple[RejectedBind, ...] = ()
    pause: bool = False
    drain: bool = False
    fatal: RpcFailure | None = None
    """The worker cannot continue with this key and session."""


@dataclass(slots=True)
class _Heartbeat:
    message: WorkerHeartbeat
    sent_ms: int
    declared: dict[AttemptKey, ActivityRef] = field(default_factory=dict)
    unbound: dict[AttemptKey, ActivityRef] = field(default_factory=dict)


class _HeldEntry(NamedTuple):
    ref: ActivityRef
    epoch: int


class HeartbeatState:
    def __init__(self, profile: WorkerHeartbeat, now_ms: int) -> None:
        """`profile`: a heartbeat without sequence and changes; all heartbeats share its fields, except `new_incarnation`,
        which they have until one is answered."""
        self._profile = profile
        self.epoch = 0
        self.sequence = 0
        self.lease_ms = 0
        self.held: dict[AttemptKey, _HeldEntry] = {}
        """The attempts that this worker holds, by agreement with the server, and their epochs."""
        self._to_declare: dict[AttemptKey, ActivityRef] = {}
        self._unacknowledged_binds: set[AttemptKey] = set()
        """Binds that the server has not acknowledged yet."""
        self._last_declared: dict[AttemptKey, int] = {}
        """The sequence number of the last heartbeat that declared an attempt."""
        self._reporting: dict[AttemptKey, int] = {}
        """Attempts whose end is being reported, with the last acknowledged sequence number before the report."""
        self._last_acknowledged = 0
        self._to_unbind: dict[AttemptKey, ActivityRef] = {}
        self._stopping: set[AttemptKey] = set()
        """Lost attempts whose body has not ended yet."""
        self._needs_full_sync = False
        self._successes = 0
        self._errors = 0
        self._last_error = ""
        self._lag_ms = 0
        self._interval_ms = 0
        self._interval_ms_max: int | None = None
        self._due_ms = now_ms
        self._heartbeat: _Heartbeat | None = None
        self._awaiting_reply = False
        self._retry_at_ms = 0
        self._retry_delay_ms = BACKOFF_MS[0]

    @property
    def key(self) -> str:
        return self._profile.worker_instance_key

    @property
    def session_id(self) -> str:
        return self._profile.session_id

    # -- changes by the program

    def bind(self, ref: ActivityRef, now_ms: int) -> None:
        """Declare an attempt with the next heartbeat, at once. A later outcome names it in `held` or `rejected_binds`."""
        assert not self.is_tracked(ref.key), "two bodies for one attempt"
        self._to_declare[ref.key] = ref
        self._unacknowledged_binds.add(ref.key)
        self.send_by(now_ms)

    def is_tracked(self, key: AttemptKey) -> bool:
        """Whether the attempt is held, or is about to be, or its body still runs."""
        return key in self.held or key in self._unacknowledged_binds or key in self._stopping

    def accept(self, ref: ActivityRef, epoch: int, now_ms: int) -> tuple[bool, tuple[Loss, ...]]:
        """Take an attempt that the server handed out under `epoch`. Returns whether its body may start, and the attempts of the
        same activity that it replaces."""
        self._to_unbind.pop(ref.key, None)
        if epoch < self.epoch or ref.key in self._stopping:
            self._to_unbind[ref.key] = ref
            self.send_by(now_ms + COALESCE_MS)
            return False, ()
        activity = ref.key[:3]
        displaced = [key for key in self.held if key[:3] == activity and key.attempt < ref.attempt]
        losses = tuple(self._lose(key, SUPERSEDED, by_lease=False) for key in displaced)
        self.held[ref.key] = _HeldEntry(ref, epoch)
        self._to_declare[ref.key] = ref
        self.send_by(now_ms + COALESCE_MS)
        return True, losses

    def unbind(self, ref: ActivityRef, now_ms: int) -> None:
        """The body of the attempt has ended, or never started."""
        key = ref.key
        server_knows = key in self.held or key in self._stopping or self._is_in_heartbeat(key)
        self._drop(key)
        if server_knows:
            self._to_unbind[key] = ref
            self.send_by(now_ms + COALESCE_MS)

    def mark_reporting(self, ref: ActivityRef) -> None:
        """The end of the attempt is about to be reported. That report confirms the attempt as well as a heartbeat would."""
        key = ref.key
        if key in self.held:
            self._to_declare.pop(key, None)
        if self.is_tracked(key):
            self._reporting[key] = self._last_acknowledged

    def forget(self, ref: ActivityRef, now_ms: int) -> None:
        """The server has recorded the end of the attempt, so it knows that this worker no longer holds it."""
        key = ref.key
        answered = self._reporting.get(key, self._last_acknowledged)
        declared = self._last_declared.get(key, 0)
        self._drop(key)
        if declared > answered:
            # The server may have applied that heartbeat after the end, and bound the attempt again.
            self._to_unbind[key] = ref
            self.send_by(now_ms + COALESCE_MS)

    def count(self, *, successes: int = 0, errors: int = 0, last_error: str = "") -> None:
        self._successes += successes
        self._errors += errors
        if last_error:
            self._last_error = last_error[:LAST_ERROR_CHARS_MAX]

    def describe(self, change: Callable[[WorkerHeartbeat], None], now_ms: int) -> None:
        """Change what the worker says about itself, from the next heartbeat on."""
        change(self._profile)
        self.send_by(now_ms + COALESCE_MS)

    def observe_lag(self, lag_ms: int) -> None:
        """Callers round the lag, because each change costs the server more than a plain heartbeat."""
        self._lag_ms = lag_ms

    def lose_all(self, reason: str) -> tuple[Loss, ...]:
        """Give up all held attempts on the worker's own decision. Unacknowledged binds are not held yet and keep waiting."""
        return tuple(self._lose(key, reason, by_lease=True) for key in list(self.held))

    def revoke(self, refs: Iterable[ActivityRef], now_ms: int) -> tuple[Loss, ...]:
        """Give up the attempts that the server ordered to stop."""
        losses = []
        for ref in refs:
            key = ref.key
            if key in self.held:
                losses.append(self._lose(key, REVOKED, by_lease=False))
            elif not (self.is_tracked(key) or key in self._to_unbind):
                self._to_unbind[key] = ref  # unknown here, so there is nothing to stop
                self.send_by(now_ms + COALESCE_MS)
        return tuple(losses)

    # -- when and what to send

    @property
    def due_ms(self) -> int | None:
        """When to send the next heartbeat; None while one is pending."""
        if self._awaiting_reply:
            return None
        return self._due_ms if self._heartbeat is None else self._retry_at_ms

    @property
    def earliest_ms(self) -> int | None:
        """When the next heartbeat may be sent at the earliest, in a call that is made for another worker."""
        due_ms = self.due_ms
        return due_ms if due_ms is None or self._heartbeat else due_ms - self._interval_ms // EARLY_DIVISOR

    @property
    def call_timeout_ms(self) -> int:
        return min(CALL_TIMEOUT_MS_MAX, self.lease_ms // 3) if self.lease_ms else CALL_TIMEOUT_MS_MAX

    @property
    def is_flushed(self) -> bool:
        """Whether no heartbeat is pending and no change has to be reported."""
        return (
            self._heartbeat is None
            and not self._to_unbind
            and self._unacknowledged_binds.isdisjoint(self._to_declare)
        )

    def send_by(self, at_ms: int) -> None:
        """Send the next heartbeat at `at_ms` at the latest."""
        self._due_ms = min(self._due_ms, at_ms)

    def limit_interval(self, interval_ms_max: int | None, now_ms: int) -> None:
        """Limit the time between heartbeats; None returns to the interval that the server asks for."""
        self._interval_ms_max = interval_ms_max
        if interval_ms_max is not None:
            self.send_by(now_ms + interval_ms_max)

    def send(self, now_ms: int) -> WorkerHeartbeat:
        """The heartbeat to send now. The caller must not change it: it may be sent again."""
        assert not self._awaiting_reply, "a heartbeat is pending"
        if self._heartbeat is None:
            self._heartbeat = self._compose(now_ms)
        self._awaiting_reply = True
        return self._heartbeat.message

    # -- replies

    def handle_reply(self, result: HeartbeatResult, now_ms: int) -> HeartbeatOutcome:
        heartbeat = self._take_heartbeat()
        self._last_acknowledged = heartbeat.message.sequence
        self._retry_delay_ms = BACKOFF_MS[0]
        if result.state != WORKER_STATE_ACTIVE:
            return self._on_lease_ended(heartbeat, result, now_ms)
        losses = self._enter_epoch(result.lease_epoch)
        held = self._acknowledge(heartbeat)
        losses += self.revoke(map(ref_from_proto, result.cancel_activities), now_ms)
        self.lease_ms = duration_to_ms(result.granted_lease_duration)
        self._interval_ms = duration_to_ms(result.next_heartbeat_after) or self.lease_ms // 3
        if self._interval_ms_max is not None:
            self._interval_ms = min(self._interval_ms, self._interval_ms_max)
        self._due_ms = now_ms + self._interval_ms
        self._needs_full_sync = self._needs_full_sync or result.resync_bindings
        if self._can_sync_fully() or not self._unacknowledged_binds.isdisjoint(self._to_declare):
            self.send_by(now_ms)
        elif self._to_declare or self._to_unbind:
            self.send_by(now_ms + COALESCE_MS)
        lost_keys = {loss.ref.key for loss in losses}
        return HeartbeatOutcome(
            sent_ms=heartbeat.sent_ms,
            lease_ms=self.lease_ms,
            held=tuple(ref for ref in held if ref.key not in lost_keys),
            lost=losses,
            pause=result.pause,
            drain=result.drain,
        )

    def handle_no_reply(self, now_ms: int, jitter: float, wait_ms: int = 0) -> None:
        """The call ended without a reply, so the heartbeat may have been applied or not. `jitter`: from 0 to 1."""
        assert self._awaiting_reply
        self._awaiting_reply = False
        self._retry_at_ms = now_ms + max(wait_ms, int(self._retry_delay_ms * (0.5 + jitter / 2)))
        self._retry_delay_ms = min(self._retry_delay_ms * 2, BACKOFF_MS[1])

    def handle_failure(
        self, rpc_failure: RpcFailure, now_ms: int, jitter: float, *, retry_now: bool = False
    ) -> HeartbeatOutcome:
        """The server refused the heartbeat, or the call failed. `retry_now`: retry at once, on another node."""
        if rpc_failure.is_retryable:
            self.handle_no_reply(now_ms, jitter, rpc_failure.retry_after_ms)
            self._retry_at_ms = now_ms if retry_now else self._retry_at_ms
            return HeartbeatOutcome()
        heartbeat = self._take_heartbeat()
        pending_binds = self._binds_acknowledged_by(heartbeat)
        # An earlier sending may have been applied with this number. The server detects and repairs a gap in the numbers,
        # but not two heartbeats with the same number.
        self._needs_full_sync = True
        self._requeue(heartbeat)
        match rpc_failure.reason:
            case "STALE_HEARTBEAT":
                last = rpc_failure.metadata.get("last_sequence", "")
                self.sequence = max(self.sequence, int(last) if last.isdigit() else 0)
                self._due_ms = now_ms
                return HeartbeatOutcome()
            case "SESSION_SUPERSEDED" | "WORKER_CLEANED_UP" | "NAMESPACE_NOT_FOUND":
                return HeartbeatOutcome(fatal=rpc_failure)
        if pending_binds and rpc_failure.code.name in (
            "INVALID_ARGUMENT",
            "RESOURCE_EXHAUSTED",
            "FAILED_PRECONDITION",
        ):
            for ref in pending_binds:
                self._drop(ref.key)
            self._due_ms = now_ms
            return HeartbeatOutcome(
                rejected_binds=tuple(
                    RejectedBind(ref, _bind_error(ref, rpc_failure)) for ref in pending_binds
                )
            )
        if rpc_failure.code.name in (
            "INVALID_ARGUMENT",
            "UNIMPLEMENTED",
            "PERMISSION_DENIED",
            "UNAUTHENTICATED",
        ):
            return HeartbeatOutcome(fatal=rpc_failure)
        if rpc_failure.reason == "WORKER_QUOTA_EXCEEDED" and not self.epoch:
            return HeartbeatOutcome(fatal=rpc_failure)
        self._due_ms = now_ms + max(rpc_failure.retry_after_ms, int(FAILURE_DELAY_MS * (0.5 + jitter / 2)))
        return HeartbeatOutcome()

    def restart(self, profile: WorkerHeartbeat, now_ms: int) -> HeartbeatState:
        """The state for a new key or session of the same program. All held attempts must have been given up before;
        unacknowledged binds are carried over."""
        assert not self.held
        fresh = HeartbeatState(profile, now_ms)
        for key, ref in self._to_declare.items():
            if key in self._unacknowledged_binds:
                fresh.bind(ref, now_ms)
        fresh._lag_ms = self._lag_ms
        return fresh

    # -- composing and acknowledging

    def _compose(self, now_ms: int) -> _Heartbeat:
        self.sequence += 1
        message = WorkerHeartbeat()
        message.CopyFrom(self._profile)
        message.sequence = self.sequence
        if self._last_acknowledged:
            message.new_incarnation = False
        message.lease_epoch = self.epoch
        heartbeat = _Heartbeat(message, now_ms)
        full_sync = self._can_sync_fully()
        self._needs_full_sync = False
        capacity = BINDING_CHANGES_MAX
        if full_sync:
            message.full_bindings = True
            heartbeat.declared = {key: entry.ref for key, entry in self.held.items()}
            capacity = FULL_BINDINGS_MAX - len(heartbeat.declared)
        # Unbinds go first: they free the worker's quota on the server.
        heartbeat.unbound = dict(list(self._to_unbind.items())[:capacity])
        capacity -= len(heartbeat.unbound)
        additions = [
            (key, ref)
            for key, ref in self._to_declare.items()
            if key not in self._to_unbind and key not in heartbeat.declared
        ]
        heartbeat.declared |= dict(additions[:capacity])
        for key in heartbeat.unbound:
            del self._to_unbind[key]
        for key in heartbeat.declared:
            self._to_declare.pop(key, None)
            self._last_declared[key] = self.sequence
        message.bound_activities.extend(ref_to_proto(ref) for ref in heartbeat.declared.values())
        message.unbound_activities.extend(ref_to_proto(ref) for ref in heartbeat.unbound.values())
        message.successes, self._successes = self._successes, 0
        message.errors, self._errors = self._errors, 0
        message.last_error, self._last_error = self._last_error, ""
        if self._lag_ms:
            message.loop_lag.CopyFrom(ms_to_duration(self._lag_ms))
        return heartbeat

    def _can_sync_fully(self) -> bool:
        """Whether to send the whole set of bindings. A server of an older version may have let the worker take more than
        one heartbeat can name; then the set is sent as soon as it has become small enough."""
        return self._needs_full_sync and len(self.held) <= FULL_BINDINGS_MAX

    def _take_heartbeat(self) -> _Heartbeat:
        assert self._awaiting_reply
        assert self._heartbeat is not None
        heartbeat, self._heartbeat, self._awaiting_reply = self._heartbeat, None, False
        return heartbeat

    def _requeue(self, heartbeat: _Heartbeat) -> None:
        """Queue the changes of a heartbeat that was not applied again."""
        message = heartbeat.message
        self._successes += message.successes
        self._errors += message.errors
        self._last_error = self._last_error or message.last_error
        wanted = {
            key: ref
            for key, ref in heartbeat.declared.items()
            if key in self._unacknowledged_binds or key in self.held
        }
        self._to_declare = wanted | self._to_declare
        self._to_unbind = heartbeat.unbound | self._to_unbind

    def _acknowledge(self, heartbeat: _Heartbeat) -> list[ActivityRef]:
        held = self._binds_acknowledged_by(heartbeat)
        for ref in held:
            self._unacknowledged_binds.discard(ref.key)
            self.held[ref.key] = _HeldEntry(ref, self.epoch)
        return held

    def _binds_acknowledged_by(self, heartbeat: _Heartbeat) -> list[ActivityRef]:
        """The binds in `heartbeat` that are still wanted. A bind that was given up and requested again since then has to be
        declared again, after its unbind."""
        return [
            ref
            for key, ref in heartbeat.declared.items()
            if key in self._unacknowledged_binds and key not in self._to_declare
        ]

    def _enter_epoch(self, epoch: int) -> tuple[Loss, ...]:
        self.epoch = max(self.epoch, epoch)
        lapsed = [key for key, entry in self.held.items() if entry.epoch < self.epoch]
        return tuple(self._lose(key, LEASE_ENDED, by_lease=True) for key in lapsed)

    def _on_lease_ended(
        self, heartbeat: _Heartbeat, result: HeartbeatResult, now_ms: int
    ) -> HeartbeatOutcome:
        """Handle a reply that arrives for a heartbeat whose lease has ended since it was applied."""
        self.epoch = max(self.epoch, result.lease_epoch)
        bound = self._acknowledge(heartbeat)
        losses = tuple(self._lose(key, LEASE_ENDED, by_lease=True) for key in list(self.held))
        assert len(losses) >= len(bound)
        self._due_ms = now_ms
        return HeartbeatOutcome(sent_ms=heartbeat.sent_ms, lease_ended=True, lost=losses)

    def _lose(self, key: AttemptKey, reason: str, *, by_lease: bool) -> Loss:
        ref = self.held.pop(key).ref
        self._to_declare.pop(key, None)
        self._stopping.add(key)
        return Loss(ref, reason, by_lease)

    def _drop(self, key: AttemptKey) -> None:
        self.held.pop(key, None)
        self._to_declare.pop(key, None)
        self._unacknowledged_binds.discard(key)
        self._stopping.discard(key)
        self._last_declared.pop(key, None)
        self._reporting.pop(key, None)

    def _is_in_heartbeat(self, key: AttemptKey) -> bool:
        return self._heartbeat is not None and key in self._heartbeat.declared


def _bind_error(ref: ActivityRef, rpc_failure: RpcFailure) -> LivenessSdkError:
    if rpc_failure.code.name == "INVALID_ARGUMENT":
        return InvalidArgument(detail=str(rpc_failure))
    return BindingRefused(activity=ref, detail=str(rpc_failure))
