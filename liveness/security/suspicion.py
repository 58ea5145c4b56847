"""Patterns of calls that look like an attack: counted by the minute, in bounded memory.

An offender is an address, a principal, a token, a worker or a namespace. Above a threshold it is reported, for as long as its
last full minute or the current one is above it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from liveness.clock import Clock
from liveness.domain.errors import FencedOff, SessionNotCurrent, SessionSuperseded, WorkerKeyOwned

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
OFFENDERS_MAX = 1_000
"""So many are told apart in a minute; the others are counted as one."""
TOKENS_MAX = 1_000
OTHERS = "others"
REPORTED_MAX = 20

FAILED_SIGN_INS = "failed_sign_ins"
FOREIGN_KEYS = "foreign_keys"
SESSION_FLAPS = "session_flaps"
FENCED_OFF = "fenced_off"
REGISTRATIONS = "registrations"
SHARED_TOKEN = "shared_token"
CLUSTER_PORT = "cluster_port"

THRESHOLDS: Mapping[str, int] = MappingProxyType(
    {
        # Per address: a program with a wrong token tries a few times and stops.
        FAILED_SIGN_INS: 20,
        # Per principal. Two programs that share a key by mistake try about once a second.
        FOREIGN_KEYS: 10,
        # Per worker key: a process that restarts again and again has a new session every 10 s at most.
        SESSION_FLAPS: 6,
        # Per namespace. A zombie is refused once and stops; after a storm there may be many.
        FENCED_OFF: 500,
        # Per namespace: more than a large fleet that starts at once.
        REGISTRATIONS: 20_000,
        # Addresses per token within an hour.
        SHARED_TOKEN: 100,
        # Per address: nodes and frontends are never refused there.
        CLUSTER_PORT: 5,
    }
)
"""An offender with more than this is reported."""

KINDS = tuple(THRESHOLDS)
FENCED_OFF_REASONS = frozenset({FencedOff.reason, SessionSuperseded.reason, SessionNotCurrent.reason})


class Offender(NamedTuple):
    namespace: str
    """Empty if it is of none, or of several."""
    who: str


class Suspicion(NamedTuple):
    kind: str
    namespace: str
    who: str
    times: int
    """Within a minute; for a token, the addresses within an hour."""


class MinuteCounts:
    """Counts by offender, of the current minute and the one before."""

    def __init__(self) -> None:
        self._minute = 0
        self._now: dict[Offender, int] = {}
        self._before: dict[Offender, int] = {}

    def add(self, offender: Offender, count: int, minute: int) -> None:
        self._turn(minute)
        counts = self._now
        if offender not in counts and len(counts) >= OFFENDERS_MAX:
            offender = Offender("", OTHERS)
        counts[offender] = counts.get(offender, 0) + count

    def above(self, threshold: int, minute: int) -> Iterator[tuple[Offender, int]]:
        self._turn(minute)
        for offender in {**self._before, **self._now}:
            count = max(self._now.get(offender, 0), self._before.get(offender, 0))
            if count > threshold and offender.who != OTHERS:
                yield offender, count

    def _turn(self, minute: int) -> None:
        if minute != self._minute:
            self._before = self._now if minute == self._minute + 1 else {}
            self._now, self._minute = {}, minute


class TokenAddresses:
    """From how many addresses each token was used within the hour. Of a token, as many are remembered as are needed to tell
    that they are too many."""

    def __init__(self, addresses_max: int) -> None:
        self._addresses_max = addresses_max
        self._hour = 0
        self._seen: dict[str, set[str]] = {}
        self._before: dict[str, int] = {}

    def add(self, token_id: str, address: str, hour: int) -> bool:
        """Returns whether the token is used from one address too many, for the first time in this hour."""
        self._turn(hour)
        seen = self._seen.get(token_id)
        if seen is None:
            if len(self._seen) >= TOKENS_MAX:
                return False
            seen = self._seen[token_id] = set()
        if address in seen or len(seen) > self._addresses_max:
            return False
        seen.add(address)
        return len(seen) > self._addresses_max

    def above(self, hour: int) -> Iterator[tuple[Offender, int]]:
        self._turn(hour)
        for token_id in {**self._before, **self._seen}:
            count = max(len(self._seen.get(token_id, ())), self._before.get(token_id, 0))
            if count > self._addresses_max:
                yield Offender("", token_id), count

    def _turn(self, hour: int) -> None:
        if hour != self._hour:
            self._before = (
                {token: len(seen) for token, seen in self._seen.items()} if hour == self._hour + 1 else {}
            )
            self._seen, self._hour = {}, hour


class SuspicionCounters:
    def __init__(self, clock: Clock, thresholds: Mapping[str, int] = THRESHOLDS) -> None:
        self._clock = clock
        self._thresholds = thresholds
        self._minutes = {kind: MinuteCounts() for kind in KINDS if kind != SHARED_TOKEN}
        self._tokens = TokenAddresses(thresholds[SHARED_TOKEN])
        self.totals = dict.fromkeys(KINDS, 0)
        """Since the start, whether or not a threshold was exceeded."""

    def count_failed_sign_in(self, address: str) -> None:
        self._count(FAILED_SIGN_INS, Offender("", address))

    def count_reasons(self, principal: str, namespace: str, reasons: Iterable[str]) -> None:
        """Count those refusals of a call, or of the items of a batch, that are suspicious."""
        for reason in reasons:
            if reason == WorkerKeyOwned.reason:
                self._count(FOREIGN_KEYS, Offender(namespace, principal))
            elif reason in FENCED_OFF_REASONS:
                self._count(FENCED_OFF, Offender(namespace, ""))

    def count_registration(self, namespace: str) -> None:
        self._count(REGISTRATIONS, Offender(namespace, ""))

    def count_session_change(self, namespace: str, instance_key: str) -> None:
        self._count(SESSION_FLAPS, Offender(namespace, instance_key))

    def note_token_use(self, token_id: str, address: str) -> None:
        """Called for each call with a token."""
        if self._tokens.add(token_id, address, self._clock.wall_ms() // HOUR_MS):
            self.totals[SHARED_TOKEN] += 1

    def count_cluster_port_refusal(self, address: str) -> None:
        """For the listener of the cluster: a caller that is neither a node nor a frontend."""
        self._count(CLUSTER_PORT, Offender("", address))

    def suspicions(self, namespace: str = "") -> list[Suspicion]:
        """Those of a namespace, or of all: the most frequent of each kind."""
        wall_ms = self._clock.wall_ms()
        found: list[Suspicion] = []
        for kind, counts in self._minutes.items():
            above = counts.above(self._thresholds[kind], wall_ms // MINUTE_MS)
            found += _busiest(kind, above, namespace)
        return found + _busiest(SHARED_TOKEN, self._tokens.above(wall_ms // HOUR_MS), namespace)

    def offender_counts(self) -> dict[str, int]:
        """How many offenders of each kind there are."""
        counts = dict.fromkeys(KINDS, 0)
        for suspicion in self.suspicions():
            counts[suspicion.kind] += 1
        return counts

    def _count(self, kind: str, offender: Offender) -> None:
        self.totals[kind] += 1
        self._minutes[kind].add(offender, 1, self._clock.wall_ms() // MINUTE_MS)


def _busiest(kind: str, above: Iterable[tuple[Offender, int]], namespace: str) -> list[Suspicion]:
    found = [
        Suspicion(kind, offender.namespace, offender.who, count)
        for offender, count in above
        if namespace in ("", offender.namespace)
    ]
    return sorted(found, key=lambda suspicion: -suspicion.times)[:REPORTED_MAX]
