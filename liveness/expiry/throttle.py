"""Holds leases back when so many workers of a namespace are due to die together that it is a storm.

The throttle is a filter between leases that are due and leases that end. It ends no lease itself, and it can only delay
the end of one that is over. Namespaces do not affect each other.

Its state is in memory only. The limit of a hold counts from the moment when the lease was over by its own terms, which
follows from durable state. So a restart or a take-over forgets the storm but lengthens no hold.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

import structlog

from liveness.clock import Clock
from liveness.domain.keys import WorkerKey
from liveness.domain.policy import Policy
from liveness.domain.storm import ExpiryPacer, Storm, StormPhase, held_until_ms, is_storm
from liveness.domain.worker import Worker, WorkerState
from liveness.expiry.death_rate import DeathCount, DeathRate
from liveness.expiry.lease_deadlines import LeaseEnd

logger = structlog.get_logger("liveness.storm")


class ThrottledShard(Protocol):
    """The part of a shard that the throttle uses."""

    needs_attention: set[tuple[str, str]]

    def now_ms(self) -> int: ...

    def recheck(self, key: WorkerKey, at_ms: int | None = None) -> None: ...


ShardT = TypeVar("ShardT", bound=ThrottledShard)


class DueLease(NamedTuple, Generic[ShardT]):
    """The lease of a worker that is over because nothing was heard of the worker."""

    shard: ShardT
    key: WorkerKey
    worker: Worker
    end: LeaseEnd


class ExpiryHold(NamedTuple):
    """A lease that is over and that a storm keeps from ending. Times are on the observed clock of its shard."""

    shard: ThrottledShard
    since_ms: int
    until_ms: int
    """When the lease is checked again."""
    slot_ms: int | None = None
    """When the pacer lets the lease end, on the monotonic clock; None while the storm holds all leases."""


class StormState:
    """The storm of one namespace, and the leases that it holds."""

    __slots__ = ("held", "pacer", "phase", "storm")

    def __init__(self, storm: Storm) -> None:
        self.storm = storm
        self.phase = StormPhase.HOLDING
        self.pacer = ExpiryPacer()
        self.held: dict[WorkerKey, ExpiryHold] = {}
        """By worker. Heartbeats look their worker up by a plain tuple, which equals the key."""

    def end_hold(self, key: tuple[str, str], *, returned: bool) -> ExpiryHold | None:
        hold = self.held.pop(key, None)  # type: ignore[call-overload]
        if hold is not None and returned:
            self.storm = self.storm._replace(returned=self.storm.returned + 1)
        return hold  # type: ignore[no-any-return]

    def recheck_all(self) -> None:
        """Have every held lease checked with the next tick."""
        for key, hold in self.held.items():
            hold.shard.recheck(key)


class ExpiryThrottle:
    def __init__(
        self,
        clock: Clock,
        policy_of: Callable[[str], Policy],
        census: Mapping[tuple[str, WorkerState], int],
        on_death_count: Callable[[str, DeathCount], None] | None = None,
    ) -> None:
        """`on_death_count`: called when workers of a namespace fall due, for nodes that share the namespace."""
        self.active_storms: dict[str, StormState] = {}
        """By namespace. Almost always empty, which the heartbeat path checks first."""
        self.storm_counts: Counter[str] = Counter()
        """How many storms there were, by namespace."""
        self.death_rate = DeathRate(clock)
        """Deaths outside storms."""
        self._on_death_count = on_death_count
        self._clock = clock
        self._policy_of = policy_of
        self._census = census

    # -- the filter between due and ended

    def filter_due(
        self, due: Iterable[DueLease[ShardT]], waiting: Mapping[str, int]
    ) -> Iterator[DueLease[ShardT]]:
        """Yield the leases that end now. The throttle holds the others and has their shards check them again later. `waiting`: how
        many other leases of each namespace are over and not ended yet; together with these they may be a storm."""
        by_namespace: defaultdict[str, list[DueLease[ShardT]]] = defaultdict(list)
        for lease in due:
            by_namespace[lease.key.namespace].append(lease)
        for namespace, group in by_namespace.items():
            policy, now_ms = self._policy_of(namespace), self._clock.monotonic_ms()
            storm_state = self.active_storms.get(namespace) or self._detect_storm(
                namespace, group, waiting.get(namespace, 0), policy, now_ms
            )
            if storm_state is not None:
                yield from self._filter_during_storm(storm_state, group, policy, now_ms)
                self.report_deaths(namespace)
            else:
                yield from group

    def _detect_storm(
        self, namespace: str, group: list[DueLease[ShardT]], waiting: int, policy: Policy, now_ms: int
    ) -> StormState | None:
        if not policy.storm_hold_ms:
            return None
        due = len(group) + waiting
        dead, total = self._death_count(namespace, due).plus(self.death_rate.on_other_nodes(namespace))
        if not is_storm(dead, total - dead, policy):
            return None
        longest_ms = max(lease.worker.granted_ms for lease in group)
        storm_state = self.active_storms[namespace] = StormState(Storm(now_ms, longest_ms))
        self.storm_counts[namespace] += 1
        logger.warning(
            "storm: expiries are held",
            namespace=namespace, due=due, died=dead - due, active=total - dead,
        )  # fmt: skip
        return storm_state

    def _death_count(self, namespace: str, due: int) -> DeathCount:
        died = self.death_rate.recent(namespace)
        return DeathCount(due + died, self._census.get((namespace, WorkerState.ACTIVE), 0) + died)

    def report_deaths(self, namespace: str) -> None:
        """Tell the other nodes how many workers of the namespace died, or are held."""
        if self._on_death_count is not None:
            storm_state = self.active_storms.get(namespace)
            self._on_death_count(
                namespace,
                self._death_count(namespace, len(storm_state.held) if storm_state is not None else 0),
            )

    def _filter_during_storm(
        self, storm_state: StormState, group: list[DueLease[ShardT]], policy: Policy, now_ms: int
    ) -> Iterator[DueLease[ShardT]]:
        if storm_state.storm.phase(now_ms, policy) is StormPhase.HOLDING:
            newly_held = [lease for lease in group if lease.key not in storm_state.held]
            longest_ms = max((lease.worker.granted_ms for lease in newly_held), default=0)
            storm_state.storm = storm_state.storm._replace(
                held_count=storm_state.storm.held_count + len(newly_held),
                lease_ms=max(storm_state.storm.lease_ms, longest_ms),
            )
        phase = storm_state.storm.phase(now_ms, policy)
        for lease in group:
            hold = self._hold(storm_state, lease, phase, policy, now_ms)
            if hold is None:
                yield lease
            else:
                storm_state.held[lease.key] = hold
                lease.shard.needs_attention.add(lease.key)
                lease.shard.recheck(lease.key, hold.until_ms)

    def _hold(
        self,
        storm_state: StormState,
        lease: DueLease[ShardT],
        phase: StormPhase,
        policy: Policy,
        now_ms: int,
    ) -> ExpiryHold | None:
        """Return None if the lease ends now."""
        shard, key, worker, end = lease
        if phase is StormPhase.RELEASED or end.holdable_from_ms is None:
            return None
        before, observed_ms = storm_state.held.get(key), shard.now_ms()
        slot_ms = None
        until_ms = observed_ms
        if phase is StormPhase.HOLDING:
            until_ms = min(
                held_until_ms(end.holdable_from_ms, worker.granted_ms, policy),
                observed_ms + storm_state.storm.hold_ends_ms(policy) - now_ms,
            )
        if until_ms <= observed_ms:
            slot_ms = before.slot_ms if before is not None else None
            if slot_ms is None:
                slot_ms, storm_state.pacer = storm_state.pacer.reserve(now_ms, policy.storm_pace)
            if slot_ms <= now_ms:
                return None
            until_ms = observed_ms + slot_ms - now_ms
        # Not later than one lease from now: a renewal does not touch timers, so the timer of a worker that returns
        # meanwhile must fire before the new deadline. A new stream likewise leaves the worker the rest of its lease.
        recheck_times_ms = (
            until_ms,
            observed_ms + worker.granted_ms,
            worker.standing.drain_deadline_ms,
            worker.deadline_ms,
        )
        until_ms = min(at_ms for at_ms in recheck_times_ms if at_ms > observed_ms)
        return ExpiryHold(shard, before.since_ms if before is not None else observed_ms, until_ms, slot_ms)

    def record_death(self, key: WorkerKey) -> None:
        """Count a death, unless a storm of its namespace released it: those deaths must not start the next storm."""
        if key.namespace not in self.active_storms:
            self.death_rate.add(key.namespace, 1)

    # -- held leases

    def on_heartbeat(self, key: tuple[str, str]) -> bool:
        """End the worker's hold because the worker is alive. Returns whether there was one."""
        storm_state = self.active_storms.get(key[0])
        return storm_state is not None and storm_state.end_hold(key, returned=True) is not None

    def on_lease_ended(self, key: WorkerKey, *, died: bool) -> None:
        """End the worker's hold because the lease has ended."""
        storm_state = self.active_storms.get(key.namespace)
        if storm_state is not None:
            storm_state.end_hold(key, returned=not died)

    def hold_of(self, key: WorkerKey) -> ExpiryHold | None:
        storm_state = self.active_storms.get(key.namespace)
        return storm_state.held.get(key) if storm_state is not None else None

    def drop_shard(self, shard: ThrottledShard) -> None:
        """Forget the holds of a shard that this node no longer serves. Its next owner decides again."""
        for storm_state in self.active_storms.values():
            for key in [key for key, hold in storm_state.held.items() if hold.shard is shard]:
                del storm_state.held[key]

    # -- the course of a storm

    def tick(self) -> None:
        """Advance storms and report deaths. Called with every tick, before timers fire."""
        if self.death_rate.prune():
            for namespace in {*self.active_storms, *self.death_rate.namespaces()}:
                self.report_deaths(namespace)
        for namespace, storm_state in list(self.active_storms.items()):
            policy, now_ms = self._policy_of(namespace), self._clock.monotonic_ms()
            phase, storm = storm_state.storm.phase(now_ms, policy), storm_state.storm
            if phase is not storm_state.phase:
                storm_state.phase = phase
                logger.warning(
                    "storm: expiries go on",
                    namespace=namespace, how=phase.name, held=len(storm_state.held), returned=storm.returned,
                )  # fmt: skip
                storm_state.recheck_all()  # a phase that changes early leaves holds with a later recheck time
            if storm.is_over(len(storm_state.held), now_ms):
                del self.active_storms[namespace]
                logger.info(
                    "storm is over",
                    namespace=namespace, held=storm.held_count, returned=storm.returned, ms=now_ms - storm.began_ms,
                )  # fmt: skip

    def policy_changed(self) -> None:
        for storm_state in self.active_storms.values():
            storm_state.pacer = ExpiryPacer()
            for key, hold in storm_state.held.items():
                storm_state.held[key] = hold._replace(slot_ms=None)
            storm_state.recheck_all()

    def release_storm(self, namespace: str, reason: str = "") -> int:
        """Stop holding leases of the namespace for a while. Returns how many were held. Works without a storm too: one
        may be about to begin, or have begun on another node."""
        now_ms = self._clock.monotonic_ms()
        storm_state = self.active_storms.setdefault(namespace, StormState(Storm(now_ms)))
        storm_state.storm = storm_state.storm._replace(released_ms=now_ms)
        storm_state.phase = StormPhase.RELEASED
        storm_state.recheck_all()
        logger.warning("storm: released", namespace=namespace, held=len(storm_state.held), reason=reason)
        return len(storm_state.held)

    # -- reports

    def held_counts(self) -> Counter[str]:
        """Return how many leases are held in each namespace."""
        return Counter(
            {
                namespace: len(storm_state.held)
                for namespace, storm_state in self.active_storms.items()
                if storm_state.held
            }
        )

    def last_hold_ends_ms(self, namespace: str) -> int | None:
        """Return when the last held lease may end, on the monotonic clock; None if none is held."""
        storm_state = self.active_storms.get(namespace)
        if storm_state is None or not storm_state.held:
            return None
        now_ms, ends_ms = (
            self._clock.monotonic_ms(),
            storm_state.storm.hold_ends_ms(self._policy_of(namespace)),
        )
        return max(
            now_ms,
            int(storm_state.pacer.next_slot_ms),
            ends_ms if storm_state.phase is StormPhase.HOLDING else 0,
        )
