"""One worker's heartbeats: what to say next, and what an answer means.

A state machine without clock, thread or network. It is told what the program does (`bind`, `adopt`, `unbind`, `ending`, `forget`),
asked when something is to be sent (`due_ms`) and what (`send`), and told what became of it (`answered`, `refused`,
`unanswered`). Its rules:

- One heartbeat is under way at a time. What changes meanwhile goes into the next.
- A heartbeat whose fate is unknown is sent again, the very same. Only when it was answered does the next sequence number
  follow: the server takes each number once, so no change is applied twice or out of order.
- What was lost is named as unbound only when its body has ended (`unbind`), so that the server can tell "told to stop"
  from "has stopped".
- In one heartbeat no attempt is both bound and unbound, because the server reads that as "taken up and finished".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from liveness.sdk.errors import BindingRefused, InvalidArgument, LivenessSdkError
from liveness.sdk.refusals import Refusal
from liveness.sdk.values import (
    ActivityRef,
    AttemptKey,
    duration_of_ms,
    ms_of,
    ref_message,
    ref_of,
)
from liveness.v1.worker_pb2 import (
    WORKER_STATE_ACTIVE,
    HeartbeatResult,
    WorkerHeartbeat,
)

BINDING_CHANGES_MAX = 200
FULL_BINDINGS_MAX = 1_000
SOON_MS = 100
"""How long a change that nobody waits for may wait for company."""
EARLY_SHARE = 10
"""A heartbeat may leave this part of its interval early, in the company of others."""
BACKOFF_MS = (50, 1_000)
LAST_ERROR_CHARS_MAX = 1_000
DEADLINE_MS_MAX = 5_000
REFUSED_WAIT_MS = 1_000

LAPSED = "the lease ended on the server, which has given the work away"
TAKEN = "the server took it away"
REPLACED = "a later attempt was given out"


class Loss(NamedTuple):
    ref: ActivityRef
    reason: str
    by_lease: bool


class NotBound(NamedTuple):
    ref: ActivityRef
    error: LivenessSdkError


@dataclass(frozen=True, slots=True)
class Heard:
    """What an answer meant."""

    sent_ms: int = 0
    """When the heartbeat it answers was sent first."""
    lease_ms: int = 0
    """0 if the lease was not renewed."""
    ended: bool = False
    """The server says that the lease is over; the next heartbeat begins a new one."""
    held: tuple[ActivityRef, ...] = ()
    lost: tuple[Loss, ...] = ()
    not_bound: tuple[NotBound, ...] = ()
    pause: bool = False
    drain: bool = False
    fatal: Refusal | None = None
    """The worker cannot go on under this key and session."""


@dataclass(slots=True)
class _Beat:
    message: WorkerHeartbeat
    sent_ms: int
    declared: dict[AttemptKey, ActivityRef] = field(default_factory=dict)
    unbound: dict[AttemptKey, ActivityRef] = field(default_factory=dict)


class _Holding(NamedTuple):
    ref: ActivityRef
    epoch: int


class Pulse:
    def __init__(self, profile: WorkerHeartbeat, now_ms: int) -> None:
        """`profile` is a heartbeat without sequence or changes: what is the same in all of them."""
        self._profile = profile
        self.epoch = 0
        self.sequence = 0
        self.lease_ms = 0
        self.held: dict[AttemptKey, _Holding] = {}
        """What the server was told, or told us, that this worker holds, and under which epoch."""
        self._to_declare: dict[AttemptKey, ActivityRef] = {}
        self._awaited: set[AttemptKey] = set()
        """Binds that were not acknowledged yet."""
        self._declared: dict[AttemptKey, int] = {}
        """In which heartbeat something was declared last."""
        self._ending: dict[AttemptKey, int] = {}
        """What is being ended on the server, and which heartbeat had been answered when that began."""
        self._answered = 0
        self._to_unbind: dict[AttemptKey, ActivityRef] = {}
        self._winding_down: set[AttemptKey] = set()
        """Lost, while its body has not ended yet."""
        self._full = False
        self._successes = 0
        self._errors = 0
        self._last_error = ""
        self._lag_ms = 0
        self._interval_ms = 0
        self._interval_ms_max: int | None = None
        self._due_ms = now_ms
        self._beat: _Beat | None = None
        self._under_way = False
        self._retry_ms = 0
        self._retry_wait_ms = BACKOFF_MS[0]

    @property
    def key(self) -> str:
        return self._profile.worker_instance_key

    @property
    def session_id(self) -> str:
        return self._profile.session_id

    # -- what the program does

    def bind(self, ref: ActivityRef, now_ms: int) -> None:
        """To be declared at once; `Heard.held` or `Heard.not_bound` will name it."""
        assert not self.knows(ref.key), "two bodies for one attempt"
        self._to_declare[ref.key] = ref
        self._awaited.add(ref.key)
        self.hasten(now_ms)

    def knows(self, key: AttemptKey) -> bool:
        """Whether the attempt is held or about to be, or its body still runs."""
        return key in self.held or key in self._awaited or key in self._winding_down

    def adopt(self, ref: ActivityRef, epoch: int, now_ms: int) -> tuple[bool, tuple[Loss, ...]]:
        """The server handed it out under this epoch. Whether it may be worked on, and what it displaces."""
        self._to_unbind.pop(ref.key, None)
        if epoch < self.epoch or ref.key in self._winding_down:
            self._to_unbind[ref.key] = ref
            self.hasten(now_ms + SOON_MS)
            return False, ()
        activity = ref.key[:3]
        displaced = [key for key in self.held if key[:3] == activity and key.attempt < ref.attempt]
        losses = tuple(self._lose(key, REPLACED, by_lease=False) for key in displaced)
        self.held[ref.key] = _Holding(ref, epoch)
        self._to_declare[ref.key] = ref
        self.hasten(now_ms + SOON_MS)
        return True, losses

    def unbind(self, ref: ActivityRef, now_ms: int) -> None:
        """Its body has ended, or never began."""
        key = ref.key
        told = key in self.held or key in self._winding_down or self._is_under_way(key)
        self._drop(key)
        if told:
            self._to_unbind[key] = ref
            self.hasten(now_ms + SOON_MS)

    def ending(self, ref: ActivityRef) -> None:
        """The server is about to be asked to record its end. That confirms it as well as a heartbeat would."""
        key = ref.key
        if key in self.held:
            self._to_declare.pop(key, None)
        if self.knows(key):
            self._ending[key] = self._answered

    def forget(self, ref: ActivityRef, now_ms: int) -> None:
        """The server has recorded its end, and with it that this worker holds it no more."""
        key = ref.key
        answered = self._ending.get(key, self._answered)
        declared = self._declared.get(key, 0)
        self._drop(key)
        if declared > answered:
            # That heartbeat may have been applied after the end was, and bound it anew.
            self._to_unbind[key] = ref
            self.hasten(now_ms + SOON_MS)

    def count(self, *, successes: int = 0, errors: int = 0, last_error: str = "") -> None:
        self._successes += successes
        self._errors += errors
        if last_error:
            self._last_error = last_error[:LAST_ERROR_CHARS_MAX]

    def observe_lag(self, lag_ms: int) -> None:
        """The fewer values it takes, the better: each change costs the server more than a plain heartbeat."""
        self._lag_ms = lag_ms

    def lose_all(self, reason: str) -> tuple[Loss, ...]:
        """By the worker's own judgement. What is not acknowledged yet is not held yet, and goes on waiting."""
        return tuple(self._lose(key, reason, by_lease=True) for key in list(self.held))

    def take_away(self, refs: Iterable[ActivityRef], now_ms: int) -> tuple[Loss, ...]:
        """The server orders to stop these."""
        losses = []
        for ref in refs:
            key = ref.key
            if key in self.held:
                losses.append(self._lose(key, TAKEN, by_lease=False))
            elif not (self.knows(key) or key in self._to_unbind):
                self._to_unbind[key] = ref  # unknown here: there is nothing to stop
                self.hasten(now_ms + SOON_MS)
        return tuple(losses)

    # -- when and what to send

    @property
    def due_ms(self) -> int | None:
        """When the next heartbeat is to leave; None while one is under way."""
        if self._under_way:
            return None
        return self._due_ms if self._beat is None else self._retry_ms

    @property
    def early_ms(self) -> int | None:
        """From when on it may leave, if a call is made anyway."""
        due_ms = self.due_ms
        return due_ms if due_ms is None or self._beat else due_ms - self._interval_ms // EARLY_SHARE

    @property
    def deadline_ms(self) -> int:
        """How long to wait for an answer."""
        return min(DEADLINE_MS_MAX, self.lease_ms // 3) if self.lease_ms else DEADLINE_MS_MAX

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing to tell that would not keep, and nothing under way."""
        return self._beat is None and not self._to_unbind and self._awaited.isdisjoint(self._to_declare)

    def hasten(self, at_ms: int) -> None:
        """Let the next heartbeat leave by then."""
        self._due_ms = min(self._due_ms, at_ms)

    def quicken(self, interval_ms_max: int | None, now_ms: int) -> None:
        """Leave at most so much time between heartbeats, or, with None, as much as the server says."""
        self._interval_ms_max = interval_ms_max
        if interval_ms_max is not None:
            self.hasten(now_ms + interval_ms_max)

    def send(self, now_ms: int) -> WorkerHeartbeat:
        """The heartbeat to send now. Not to be changed: it may be sent again."""
        assert not self._under_way, "one at a time"
        if self._beat is None:
            self._beat = self._compose(now_ms)
        self._under_way = True
        return self._beat.message

    # -- what became of it

    def answered(self, result: HeartbeatResult, now_ms: int) -> Heard:
        beat = self._close()
        self._answered = beat.message.sequence
        self._retry_wait_ms = BACKOFF_MS[0]
        if result.state != WORKER_STATE_ACTIVE:
            return self._lapsed(beat, result, now_ms)
        losses = self._enter_epoch(result.lease_epoch)
        held = self._acknowledge(beat)
        losses += self.take_away(map(ref_of, result.cancel_activities), now_ms)
        self.lease_ms = ms_of(result.granted_lease_duration)
        self._interval_ms = ms_of(result.next_heartbeat_after) or self.lease_ms // 3
        if self._interval_ms_max is not None:
            self._interval_ms = min(self._interval_ms, self._interval_ms_max)
        self._due_ms = now_ms + self._interval_ms
        self._full = self._full or result.resync_bindings
        if self._full or not self._awaited.isdisjoint(self._to_declare):
            self.hasten(now_ms)
        elif self._to_declare or self._to_unbind:
            self.hasten(now_ms + SOON_MS)
        gone = {loss.ref.key for loss in losses}
        return Heard(
            sent_ms=beat.sent_ms,
            lease_ms=self.lease_ms,
            held=tuple(ref for ref in held if ref.key not in gone),
            lost=losses,
            pause=result.pause,
            drain=result.drain,
        )

    def unanswered(self, now_ms: int, jitter: float, wait_ms: int = 0) -> None:
        """Nobody knows whether it was applied. `jitter` from 0 to 1."""
        assert self._under_way
        self._under_way = False
        self._retry_ms = now_ms + max(wait_ms, int(self._retry_wait_ms * (0.5 + jitter / 2)))
        self._retry_wait_ms = min(self._retry_wait_ms * 2, BACKOFF_MS[1])

    def refused(self, refusal: Refusal, now_ms: int, jitter: float, *, at_once: bool = False) -> Heard:
        """It was not applied, for a reason of its own. `at_once`: another node is there to be asked."""
        if refusal.passing:
            self.unanswered(now_ms, jitter, refusal.retry_after_ms)
            self._retry_ms = now_ms if at_once else self._retry_ms
            return Heard()
        beat = self._close()
        binds = self._awaited_in(beat)
        # The number may have been used all the same, by an earlier sending. A gap is noticed and mended, a second
        # meaning of one number is not.
        self._full = True
        self._put_back(beat)
        match refusal.reason:
            case "STALE_HEARTBEAT":
                last = refusal.metadata.get("last_sequence", "")
                self.sequence = max(self.sequence, int(last) if last.isdigit() else 0)
                self._due_ms = now_ms
                return Heard()
            case "SESSION_SUPERSEDED" | "WORKER_CLEANED_UP" | "NAMESPACE_NOT_FOUND":
                return Heard(fatal=refusal)
        if binds and refusal.code.name in ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION"):
            for ref in binds:
                self._drop(ref.key)
            self._due_ms = now_ms
            return Heard(not_bound=tuple(NotBound(ref, _why_not_bound(ref, refusal)) for ref in binds))
        if refusal.code.name in ("INVALID_ARGUMENT", "UNIMPLEMENTED", "PERMISSION_DENIED", "UNAUTHENTICATED"):
            return Heard(fatal=refusal)
        if refusal.reason == "WORKER_QUOTA_EXCEEDED" and not self.epoch:
            return Heard(fatal=refusal)
        self._due_ms = now_ms + max(refusal.retry_after_ms, int(REFUSED_WAIT_MS * (0.5 + jitter / 2)))
        return Heard()

    def start_over(self, profile: WorkerHeartbeat, now_ms: int) -> Pulse:
        """The pulse of the same program under another key or session. What was held must have been lost; binds that
        wait go on waiting."""
        assert not self.held
        fresh = Pulse(profile, now_ms)
        for key, ref in self._to_declare.items():
            if key in self._awaited:
                fresh.bind(ref, now_ms)
        fresh._lag_ms = self._lag_ms
        return fresh

    # -- inside

    def _compose(self, now_ms: int) -> _Beat:
        self.sequence += 1
        message = WorkerHeartbeat()
        message.CopyFrom(self._profile)
        message.sequence = self.sequence
        beat = _Beat(message, now_ms)
        full = self._full and len(self.held) <= FULL_BINDINGS_MAX
        self._full = False
        room = BINDING_CHANGES_MAX
        if full:
            message.full_bindings = True
            beat.declared = {key: holding.ref for key, holding in self.held.items()}
            room = FULL_BINDINGS_MAX - len(beat.declared)
        # Ends first: they make room in the server's quota.
        beat.unbound = dict(list(self._to_unbind.items())[:room])
        room -= len(beat.unbound)
        new = [
            (key, ref)
            for key, ref in self._to_declare.items()
            if key not in self._to_unbind and key not in beat.declared
        ]
        beat.declared |= dict(new[:room])
        for key in beat.unbound:
            del self._to_unbind[key]
        for key in beat.declared:
            self._to_declare.pop(key, None)
            self._declared[key] = self.sequence
        message.bound_activities.extend(ref_message(ref) for ref in beat.declared.values())
        message.unbound_activities.extend(ref_message(ref) for ref in beat.unbound.values())
        message.successes, self._successes = self._successes, 0
        message.errors, self._errors = self._errors, 0
        message.last_error, self._last_error = self._last_error, ""
        if self._lag_ms:
            message.loop_lag.CopyFrom(duration_of_ms(self._lag_ms))
        return beat

    def _close(self) -> _Beat:
        assert self._under_way
        assert self._beat is not None
        beat, self._beat, self._under_way = self._beat, None, False
        return beat

    def _put_back(self, beat: _Beat) -> None:
        """It was not applied: its changes are still to be told."""
        message = beat.message
        self._successes += message.successes
        self._errors += message.errors
        self._last_error = self._last_error or message.last_error
        wanted = {key: ref for key, ref in beat.declared.items() if key in self._awaited or key in self.held}
        self._to_declare = wanted | self._to_declare
        self._to_unbind = beat.unbound | self._to_unbind

    def _acknowledge(self, beat: _Beat) -> list[ActivityRef]:
        held = self._awaited_in(beat)
        for ref in held:
            self._awaited.discard(ref.key)
            self.held[ref.key] = _Holding(ref, self.epoch)
        return held

    def _awaited_in(self, beat: _Beat) -> list[ActivityRef]:
        """The binds in it that are still wanted. One that was given up and wanted anew since is to be declared again,
        after its unbinding."""
        return [
            ref for key, ref in beat.declared.items() if key in self._awaited and key not in self._to_declare
        ]

    def _enter_epoch(self, epoch: int) -> tuple[Loss, ...]:
        self.epoch = max(self.epoch, epoch)
        lapsed = [key for key, holding in self.held.items() if holding.epoch < self.epoch]
        return tuple(self._lose(key, LAPSED, by_lease=True) for key in lapsed)

    def _lapsed(self, beat: _Beat, result: HeartbeatResult, now_ms: int) -> Heard:
        """The answer to a heartbeat that was applied earlier, and whose lease has ended since."""
        self.epoch = max(self.epoch, result.lease_epoch)
        bound = self._acknowledge(beat)
        losses = tuple(self._lose(key, LAPSED, by_lease=True) for key in list(self.held))
        assert len(losses) >= len(bound)
        self._due_ms = now_ms
        return Heard(sent_ms=beat.sent_ms, ended=True, lost=losses)

    def _lose(self, key: AttemptKey, reason: str, *, by_lease: bool) -> Loss:
        ref = self.held.pop(key).ref
        self._to_declare.pop(key, None)
        self._winding_down.add(key)
        return Loss(ref, reason, by_lease)

    def _drop(self, key: AttemptKey) -> None:
        self.held.pop(key, None)
        self._to_declare.pop(key, None)
        self._awaited.discard(key)
        self._winding_down.discard(key)
        self._declared.pop(key, None)
        self._ending.pop(key, None)

    def _is_under_way(self, key: AttemptKey) -> bool:
        return self._beat is not None and key in self._beat.declared


def _why_not_bound(ref: ActivityRef, refusal: Refusal) -> LivenessSdkError:
    if refusal.code.name == "INVALID_ARGUMENT":
        return InvalidArgument(detail=str(refusal))
    return BindingRefused(activity=ref, detail=str(refusal))
