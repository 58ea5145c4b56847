"""The storm brake: when many workers of a namespace fall due together, their leases are not ended at once.

It says when to look at a worker again, and nothing else: it ends no lease, and whoever is not asked about is not held.
In memory only. What bounds a hold, when the lease was over by its own terms, is derived from durable state, so that a
restart or a take-over forgets the storm but lengthens no hold. Each namespace is on its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import structlog

from liveness.clock import Clock
from liveness.domain.keys import WorkerKey
from liveness.domain.policy import Policy
from liveness.domain.storm import Line, Phase, Storm, held_until_ms, is_storm
from liveness.domain.worker import Worker, WorkerState
from liveness.shard.policies import Policies
from liveness.shard.strikes import Counted, Strikes

if TYPE_CHECKING:
    from liveness.shard.shard import Shard

logger = structlog.get_logger("liveness.storm")


class Dying(NamedTuple):
    """A worker whose lease is over because nothing was heard of it."""

    shard: Shard
    key: WorkerKey
    worker: Worker


class Hold(NamedTuple):
    """On the clock of the worker's shard, unless a name says otherwise."""

    shard: Shard
    since_ms: int
    until_ms: int
    """When it is looked at again."""
    turn_ms: int | None = None
    """Its place in the line, on the monotonic clock, once its hold is over."""


class Gale:
    """The storm over one namespace."""

    __slots__ = ("held", "line", "phase", "storm")

    def __init__(self, storm: Storm) -> None:
        self.storm = storm
        self.phase = Phase.HOLDING
        self.line = Line()
        self.held: dict[WorkerKey, Hold] = {}
        """By key; a heartbeat's key is an equal tuple."""

    def let_go(self, key: tuple[str, str], *, returned: bool) -> Hold | None:
        hold = self.held.pop(key, None)  # type: ignore[call-overload]
        if hold is not None and returned:
            self.storm = self.storm._replace(returned=self.storm.returned + 1)
        return hold  # type: ignore[no-any-return]

    def look_at_all(self) -> None:
        """Judge everybody anew."""
        for key, hold in self.held.items():
            hold.shard.look_at(key)


class Brake:
    def __init__(
        self, clock: Clock, policies: Policies, census: Mapping[tuple[str, WorkerState], int]
    ) -> None:
        self.gales: dict[str, Gale] = {}
        """By namespace. Empty almost always: whoever is on the way of heartbeats asks that first."""
        self.storms: Counter[str] = Counter()
        """How many there were, by namespace."""
        self.strikes = Strikes(clock)
        """Deaths that were not held."""
        self.on_struck: Callable[[str, Counted], None] | None = None
        """Told when workers of a namespace fall due, where other nodes may want to know."""
        self._clock = clock
        self._policies = policies
        self._census = census

    # -- judging

    def judge(self, dying: Iterable[Dying]) -> Iterator[tuple[Dying, int | None]]:
        """All that fall due now. With each: when to look at it again, or None if its lease ends now."""
        by_namespace: defaultdict[str, list[Dying]] = defaultdict(list)
        for one in dying:
            by_namespace[one.key.namespace].append(one)
        for namespace, group in by_namespace.items():
            policy, now_ms = self._policies.of(namespace), self._clock.monotonic_ms()
            gale = self.gales.get(namespace) or self._begun(namespace, group, policy, now_ms)
            if gale is not None:
                yield from self._judge(gale, group, policy, now_ms)
            else:
                yield from ((one, None) for one in group)
            self._tell(namespace)

    def _begun(self, namespace: str, group: list[Dying], policy: Policy, now_ms: int) -> Gale | None:
        if not policy.storm_hold_ms:
            return None
        due = len(group)
        struck, of = self._counted(namespace, due).and_also(self.strikes.elsewhere(namespace))
        if not is_storm(struck, of - struck, policy):
            return None
        longest_ms = max(one.worker.granted_ms for one in group)
        gale = self.gales[namespace] = Gale(Storm(now_ms, longest_ms))
        self.storms[namespace] += 1
        logger.warning(
            "storm: expiries are held",
            namespace=namespace, due=due, died=struck - due, active=of - struck,
        )  # fmt: skip
        return gale

    def _counted(self, namespace: str, due: int) -> Counted:
        died = self.strikes.recent(namespace)
        return Counted(due + died, self._census.get((namespace, WorkerState.ACTIVE), 0) + died)

    def _tell(self, namespace: str) -> None:
        if self.on_struck is not None:
            gale = self.gales.get(namespace)
            self.on_struck(namespace, self._counted(namespace, len(gale.held) if gale is not None else 0))

    def _judge(
        self, gale: Gale, group: list[Dying], policy: Policy, now_ms: int
    ) -> Iterator[tuple[Dying, int | None]]:
        if gale.storm.phase(now_ms, policy) is Phase.HOLDING:
            fresh = [one for one in group if one.key not in gale.held]
            longest_ms = max((one.worker.granted_ms for one in fresh), default=0)
            gale.storm = gale.storm._replace(
                caught=gale.storm.caught + len(fresh), lease_ms=max(gale.storm.lease_ms, longest_ms)
            )
        phase = gale.storm.phase(now_ms, policy)
        for one in group:
            hold = self._hold(gale, one, phase, policy, now_ms)
            if hold is not None:
                gale.held[one.key] = hold
                one.shard.doubts.add(one.key)
            yield one, None if hold is None else hold.until_ms

    def _hold(self, gale: Gale, one: Dying, phase: Phase, policy: Policy, now_ms: int) -> Hold | None:
        """None: it ends now."""
        shard, worker, observed_ms = one.shard, one.worker, one.shard.now_ms()
        drain_ms = worker.standing.drain_deadline_ms
        if phase is Phase.RELEASED or 0 < drain_ms <= observed_ms:
            return None  # the limit of a drain is an operator's word
        before = gale.held.get(one.key)
        turn_ms = None
        until_ms = observed_ms
        if phase is Phase.HOLDING:
            until_ms = min(
                held_until_ms(shard.endings.terms_end_ms(one.key, worker), worker.granted_ms, policy),
                observed_ms + gale.storm.hold_ends_ms(policy) - now_ms,
            )
        if until_ms <= observed_ms:
            turn_ms = before.turn_ms if before is not None else None
            if turn_ms is None:
                turn_ms, gale.line = gale.line.join(now_ms, policy.storm_pace)
            if turn_ms <= now_ms:
                return None
            until_ms = observed_ms + turn_ms - now_ms
        # Never beyond a lease from now: should it come back meanwhile, its timer must not come after its new deadline,
        # because a renewal does not touch timers. The same holds for a new stream and what was left of its lease.
        looks_ms = (until_ms, observed_ms + worker.granted_ms, drain_ms, worker.deadline_ms)
        until_ms = min(at_ms for at_ms in looks_ms if at_ms > observed_ms)
        return Hold(shard, before.since_ms if before is not None else observed_ms, until_ms, turn_ms)

    def doom(self, key: WorkerKey) -> None:
        """Its lease ends now. Those whom a storm has let go of do not make the next one."""
        if key.namespace not in self.gales:
            self.strikes.add(key.namespace, 1)

    # -- what becomes of those who are held

    def heard(self, key: tuple[str, str]) -> bool:
        """A heartbeat came. Returns whether it was held."""
        gale = self.gales.get(key[0])
        return gale is not None and gale.let_go(key, returned=True) is not None

    def ended(self, key: WorkerKey, *, died: bool) -> None:
        """Its lease did."""
        gale = self.gales.get(key.namespace)
        if gale is not None:
            gale.let_go(key, returned=not died)

    def hold_of(self, key: WorkerKey) -> Hold | None:
        gale = self.gales.get(key.namespace)
        return gale.held.get(key) if gale is not None else None

    def forget(self, shard: Shard) -> None:
        """It does not serve here any more: who serves it next judges for itself."""
        for gale in self.gales.values():
            for key in [key for key, hold in gale.held.items() if hold.shard is shard]:
                del gale.held[key]

    # -- the course of a storm

    def look(self) -> None:
        """With every pulse, before timers fire."""
        if self.strikes.forget_old():
            for namespace in {*self.gales, *self.strikes.namespaces()}:
                self._tell(namespace)
        for namespace, gale in list(self.gales.items()):
            policy, now_ms = self._policies.of(namespace), self._clock.monotonic_ms()
            phase, storm = gale.storm.phase(now_ms, policy), gale.storm
            if phase is not gale.phase:
                gale.phase = phase
                logger.warning(
                    "storm: expiries go on",
                    namespace=namespace, how=phase.name, held=len(gale.held), returned=storm.returned,
                )  # fmt: skip
                gale.look_at_all()  # most holds end by themselves just now, but not if it is over early
            if storm.is_over(len(gale.held), now_ms):
                del self.gales[namespace]
                logger.info(
                    "storm is over",
                    namespace=namespace, caught=storm.caught, returned=storm.returned, ms=now_ms - storm.began_ms,
                )  # fmt: skip

    def policy_changed(self) -> None:
        for gale in self.gales.values():
            gale.line = Line()
            for key, hold in gale.held.items():
                gale.held[key] = hold._replace(turn_ms=None)
            gale.look_at_all()

    def release(self, namespace: str, reason: str = "") -> int:
        """Hold nobody of the namespace for a while. Returns how many were held. Also without a storm: one may be about to
        begin, or have begun elsewhere."""
        now_ms = self._clock.monotonic_ms()
        gale = self.gales.setdefault(namespace, Gale(Storm(now_ms)))
        gale.storm = gale.storm._replace(released_ms=now_ms)
        gale.phase = Phase.RELEASED
        gale.look_at_all()
        logger.warning("storm: released", namespace=namespace, held=len(gale.held), reason=reason)
        return len(gale.held)

    # -- for people

    def held(self) -> Counter[str]:
        """Workers per namespace."""
        return Counter({namespace: len(gale.held) for namespace, gale in self.gales.items() if gale.held})

    def held_until_ms(self, namespace: str) -> int | None:
        """On the monotonic clock: when the last of them is let go of, or has its turn."""
        gale = self.gales.get(namespace)
        if gale is None or not gale.held:
            return None
        now_ms, ends_ms = self._clock.monotonic_ms(), gale.storm.hold_ends_ms(self._policies.of(namespace))
        return max(now_ms, int(gale.line.free_ms), ends_ms if gale.phase is Phase.HOLDING else 0)
