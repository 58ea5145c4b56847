"""A model of the server, written from its specification and not from its code.

It has one value per worker, plain dictionaries, and one function per input. It knows no events, logs, group
commits or timers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

ACTIVE, INACTIVE, CLEANED_UP = "ACTIVE", "INACTIVE", "CLEANED_UP"
OBSERVED_STEP_MAX_MS = 1_000
TAKEOVER_GRACES_MAX = 3

ActivityName = tuple[str, str, str]
Attempt = int


class Refused(Exception):
    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True)
class Rules:
    """The settings of a namespace."""

    default_lease_ms: int = 30_000
    min_lease_ms: int = 1_000
    max_lease_ms: int = 3_600_000
    cleanup_delay_ms: int = 3_600_000
    tombstone_retention_ms: int = 30 * 86_400_000
    max_workers: int = 1_000_000
    max_bindings_per_worker: int = 1_000


@dataclass(frozen=True)
class Beat:
    session: str
    sequence: int
    lease_ms: int | None
    bound: tuple[tuple[ActivityName, Attempt], ...]
    unbound: tuple[tuple[ActivityName, Attempt], ...]
    full: bool
    new_incarnation: bool = False
    held_epoch: int = 0
    """The epoch of the lease that the session says it has."""
    successes: int = 0
    errors: int = 0
    last_error: str = ""


@dataclass(frozen=True)
class ModelWorker:
    state: str
    session: str
    sequence: int
    epoch: int
    lease_ms: int
    heard_ms: int
    deadline_ms: int
    held: dict[ActivityName, Attempt] = field(default_factory=dict)
    to_cancel: dict[ActivityName, Attempt] = field(default_factory=dict)
    replaced: tuple[str, ...] = ()
    resync: bool = False
    """Whether the client was asked for its full set of bindings."""
    heartbeats: int = 0
    successes: int = 0
    errors: int = 0
    last_error: str = ""
    error_reported: bool = False
    """Whether it ever reported one in this life of the key."""

    def counted(self, beat: Beat) -> ModelWorker:
        """One more heartbeat was applied."""
        return replace(
            self,
            heartbeats=self.heartbeats + 1,
            successes=self.successes + beat.successes,
            errors=self.errors + beat.errors,
            last_error=beat.last_error or self.last_error,
            error_reported=self.error_reported or beat.last_error != "",
        )


@dataclass(frozen=True)
class Lost:
    """An activity that must be rescheduled: this worker lost it in this lease."""

    worker: tuple[str, str]
    epoch: int
    activity: ActivityName
    attempt: Attempt


class ModelClock:
    """The observed clock of one shard: at most a second beyond the durable time."""

    def __init__(self) -> None:
        self.durable_ms = 0
        self.since_ms = 0
        self.takeovers: list[int] = []
        self.grace_until_ms = 0

    def now(self, monotonic_ms: int) -> int:
        return self.durable_ms + min(monotonic_ms - self.since_ms, OBSERVED_STEP_MAX_MS)

    def committed(self, observed_ms: int, monotonic_ms: int) -> None:
        assert observed_ms == self.now(monotonic_ms), "the commit writes the observed time"
        self.durable_ms, self.since_ms = observed_ms, monotonic_ms

    def taken_over(self, observed_ms: int, monotonic_ms: int, grace_ms: int) -> None:
        assert observed_ms == self.durable_ms, "a take-over continues from the last commit"
        self.since_ms = monotonic_ms
        self.takeovers.append(observed_ms)
        self.grace_until_ms = observed_ms + grace_ms

    def lease_end(self, worker: ModelWorker) -> int:
        taken_in_silence = sum(at_ms > worker.heard_ms for at_ms in self.takeovers)
        is_inherited = worker.heard_ms <= self.takeovers[-1]
        if taken_in_silence > TAKEOVER_GRACES_MAX or not is_inherited:
            return worker.deadline_ms
        return max(worker.deadline_ms, self.grace_until_ms)


class Model:
    def __init__(self, shard_of: Callable[[tuple[str, str]], int]) -> None:
        self.workers: dict[tuple[str, str], ModelWorker] = {}
        self.rules: dict[str, Rules] = {}
        self.lost: list[Lost] = []
        self.floors: dict[int, int] = {}
        """The lowest epoch of a worker that registers, by shard: above those of all forgotten workers."""
        self._shard_of = shard_of

    def rules_of(self, namespace: str) -> Rules:
        return self.rules.get(namespace, Rules())

    # -- heartbeats

    def heartbeat(self, key: tuple[str, str], beat: Beat, now_ms: int) -> str:
        """Return the outcome, or raise and change nothing."""
        worker, rules = self.workers.get(key), self.rules_of(key[0])
        if worker is None or worker.state == CLEANED_UP:
            if worker is not None:
                self._check_incarnation(worker, beat)
            first = self._activated(None, beat, rules, now_ms)
            population = sum(
                namespace == key[0] and other.state != CLEANED_UP
                for (namespace, _), other in self.workers.items()
            )
            if population >= rules.max_workers:
                raise Refused("WORKER_QUOTA_EXCEEDED")
            if worker is None:
                self.workers[key] = replace(first, epoch=self.floors.get(self._shard_of(key), 1))
                return "REGISTERED"
            replaced = (*worker.replaced, *([worker.session] if worker.session else []))
            self.workers[key] = replace(first, epoch=worker.epoch + 1, replaced=replaced)
            return "REGISTERED"
        if beat.session in worker.replaced:
            raise Refused("SESSION_SUPERSEDED")
        same_session = beat.session in ("", worker.session)
        if not same_session and 0 < beat.held_epoch < worker.epoch:
            raise Refused("SESSION_SUPERSEDED")
        if beat.session and same_session and beat.sequence:
            if beat.sequence == worker.sequence:
                return "REPEATED"
            if beat.sequence < worker.sequence:
                raise Refused("STALE_HEARTBEAT")
        if worker.state == INACTIVE:
            self.workers[key] = self._activated(worker, beat, rules, now_ms)
            return "RESURRECTED"
        if not same_session:
            after = self._activated(worker, beat, rules, now_ms)
            gone = {name: attempt for name, attempt in worker.held.items() if name not in after.held}
            self._lose(key, worker, gone)
            self.workers[key] = replace(after, to_cancel={})
            return "SESSION_REPLACED"
        self.workers[key] = self._renewed(worker, beat, rules, now_ms)
        return "RENEWED"

    def _check_incarnation(self, tombstone: ModelWorker, beat: Beat) -> None:
        """Only a session that the key never had begins a new incarnation, and only if it says so."""
        if not beat.new_incarnation or beat.session in ("", tombstone.session):
            raise Refused("WORKER_CLEANED_UP")
        if beat.session in tombstone.replaced or 0 < beat.held_epoch < tombstone.epoch:
            raise Refused("SESSION_SUPERSEDED")

    def _activated(self, worker: ModelWorker | None, beat: Beat, rules: Rules, now_ms: int) -> ModelWorker:
        held = _apply_deltas({}, beat)
        _check_quota(held, 0, rules)
        same_session = worker is not None and beat.session in ("", worker.session)
        last_sequence = worker.sequence if worker is not None and same_session else 0
        replaced = worker.replaced if worker else ()
        if worker is not None and not same_session and worker.session:
            replaced = (*replaced, worker.session)
        granted_ms = _granted(beat.lease_ms, rules)
        session = beat.session or (worker.session if worker else "")
        return ModelWorker(
            state=ACTIVE,
            session=session,
            sequence=_next_sequence(session, last_sequence, beat),
            epoch=worker.epoch + 1 if worker else 1,
            lease_ms=granted_ms,
            heard_ms=now_ms,
            deadline_ms=now_ms + granted_ms,
            held=held,
            to_cancel=worker.to_cancel if worker else {},
            replaced=replaced,
            resync=bool(beat.session) and not beat.full and beat.sequence > last_sequence + 1,
            heartbeats=worker.heartbeats if worker else 0,
            successes=worker.successes if worker else 0,
            errors=worker.errors if worker else 0,
            last_error=worker.last_error if worker else "",
            error_reported=worker.error_reported if worker else False,
        ).counted(beat)

    def _renewed(self, worker: ModelWorker, beat: Beat, rules: Rules, now_ms: int) -> ModelWorker:
        held = _apply_deltas({} if beat.full else worker.held, beat)
        _check_quota(held, len(worker.held), rules)
        to_cancel, resync = dict(worker.to_cancel), worker.resync
        named = {name for name, _ in beat.bound}
        if (beat.session or not worker.session) and beat.sequence > worker.sequence + 1 > 1:
            resync = True  # a heartbeat is missing, and with it perhaps changes of bindings
        for name, attempt in beat.unbound:
            if name not in worker.held and name not in worker.to_cancel and name not in named:
                resync = resync or bool(
                    beat.session and beat.sequence
                )  # it held an activity that the server never knew
            ends_binding = dict(beat.bound).get(name, worker.held.get(name)) == attempt
            if to_cancel.get(name) == attempt or (ends_binding and name in worker.held):
                to_cancel.pop(name, None)
        if beat.full:
            resync = False
            to_cancel = {name: attempt for name, attempt in to_cancel.items() if name in held}
        granted_ms = _granted(beat.lease_ms, rules)
        return replace(
            worker,
            sequence=_next_sequence(worker.session, worker.sequence, beat),
            lease_ms=granted_ms,
            heard_ms=now_ms,
            deadline_ms=now_ms + granted_ms,
            held=held,
            to_cancel=to_cancel,
            resync=resync,
        ).counted(beat)

    # -- shutdown and forced expiry

    def shutdown(self, key: tuple[str, str], session: str, now_ms: int) -> int:
        """Return the number of rescheduled activities."""
        worker = self._known(key)
        if session in worker.replaced:
            raise Refused("SESSION_SUPERSEDED")
        if session not in ("", worker.session):
            raise Refused("SESSION_NOT_CURRENT")
        return self._deactivate(key, worker, now_ms) if worker.state == ACTIVE else 0

    def force(self, key: tuple[str, str], now_ms: int) -> int:
        worker = self._known(key)
        if worker.state != ACTIVE:
            raise Refused("WORKER_NOT_ACTIVE")
        return self._deactivate(key, worker, now_ms)

    def _known(self, key: tuple[str, str]) -> ModelWorker:
        worker = self.workers.get(key)
        if worker is None:
            raise Refused("WORKER_NOT_FOUND")
        if worker.state == CLEANED_UP:
            raise Refused("WORKER_CLEANED_UP")
        return worker

    def _deactivate(self, key: tuple[str, str], worker: ModelWorker, now_ms: int) -> int:
        self._lose(key, worker, worker.held)
        self.workers[key] = replace(
            worker,
            state=INACTIVE,
            deadline_ms=now_ms + self.rules_of(key[0]).cleanup_delay_ms,
            held={},
            to_cancel={**worker.to_cancel, **worker.held},
            resync=False,
        )
        return len(worker.held)

    def _lose(
        self, key: tuple[str, str], worker: ModelWorker, activities: dict[ActivityName, Attempt]
    ) -> None:
        self.lost += [Lost(key, worker.epoch, name, attempt) for name, attempt in activities.items()]

    # -- time

    def tick(self, key: tuple[str, str], clock: ModelClock, now_ms: int) -> None:
        """Apply the timers after the server read its clock."""
        worker = self.workers[key]
        if worker.state == ACTIVE and now_ms >= clock.lease_end(worker):
            self._deactivate(key, worker, now_ms)
            worker = self.workers[key]
        if worker.state == INACTIVE and now_ms >= worker.deadline_ms:
            retention_ms = self.rules_of(key[0]).tombstone_retention_ms
            self.workers[key] = replace(
                worker,
                state=CLEANED_UP,
                deadline_ms=now_ms + retention_ms if retention_ms else 0,
                to_cancel={},
                last_error="",
                error_reported=False,
            )

    def forget(self, key: tuple[str, str], now_ms: int) -> None:
        worker = self.workers[key]
        if worker.state == CLEANED_UP and worker.deadline_ms and now_ms >= worker.deadline_ms:
            self._forget(key, worker)

    def forget_now(self, key: tuple[str, str]) -> str:
        """An operator's order. Return the state of the worker until now."""
        worker = self.workers.get(key)
        if worker is None:
            raise Refused("WORKER_NOT_FOUND")
        if worker.state == ACTIVE:
            raise Refused("WORKER_ACTIVE")
        self._forget(key, worker)
        return f"FORGOTTEN WHILE {worker.state}"

    def _forget(self, key: tuple[str, str], worker: ModelWorker) -> None:
        shard_id = self._shard_of(key)
        self.floors = {**self.floors, shard_id: max(self.floors.get(shard_id, 1), worker.epoch + 1)}
        del self.workers[key]


def _apply_deltas(held: dict[ActivityName, Attempt], beat: Beat) -> dict[ActivityName, Attempt]:
    after = {**held, **dict(beat.bound)}
    for name, attempt in beat.unbound:
        if after.get(name) == attempt:
            del after[name]
    return after


def _check_quota(held: dict[ActivityName, Attempt], before: int, rules: Rules) -> None:
    if len(held) > rules.max_bindings_per_worker and len(held) > before:
        raise Refused("BINDING_QUOTA_EXCEEDED")


def _granted(requested_ms: int | None, rules: Rules) -> int:
    wanted_ms = rules.default_lease_ms if requested_ms is None else requested_ms
    return min(max(wanted_ms, rules.min_lease_ms), rules.max_lease_ms)


def _next_sequence(session: str, last_sequence: int, beat: Beat) -> int:
    """A sequence number without a session does not change that of a named session."""
    if session and not beat.session:
        return last_sequence
    return beat.sequence or last_sequence
