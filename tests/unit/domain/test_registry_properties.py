"""Any sequence of registrations, heartbeats, goodbyes and time against a model that was written without the decider.

The model knows processes, not sessions: which of them has the name, until when, which are replicas since when, and up to which
number each has been counted. Heartbeats with a number are sent again, at once or late, whatever has happened to their process meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import example, given
from hypothesis import strategies as st

from liveness.domain.errors import (
    LivenessError,
    RegistryEntryNotFound,
    SessionNotCurrent,
    SessionSuperseded,
    StaleHeartbeat,
    WorkerKeyHeld,
)
from liveness.domain.fold import evolve
from liveness.domain.registry import ReplicaPolicy
from liveness.domain.registry_decider import current_status
from liveness.domain.worker import Worker, WorkerState
from tests.unit.domain.registry_scenario import WALL_MS, RegistryScenario

LEASE_MS = 30_000
CLEANUP_MS = 60 * 60_000
PROCESSES = ("p", "q", "r")

REFUSED = "refused"
UNKNOWN = "unknown"
REPLICA = "replica"
HELD = "has the name"
GONE = "said goodbye"
REPEATED = "was counted before"
STALE = "comes too late"


@dataclass
class Model:
    now_ms: int = 0
    exists: bool = False
    holder: str = ""
    """Who has the name, or had it last."""
    is_live: bool = False
    until_ms: int = 0
    status: str = ""
    uri: str = ""
    successes: int = 0
    epoch: int = 0
    replicas: dict[str, tuple[int, str]] = field(default_factory=dict)
    """When each was heard of, and its uri."""
    had_name: set[str] = field(default_factory=set)
    cleaned: bool = False
    counted: dict[str, int] = field(default_factory=dict)
    """The last number of each process that was counted."""

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        if self.is_live and self.now_ms >= self.until_ms:
            self.is_live, self.until_ms = False, self.now_ms + CLEANUP_MS
        if self.exists and not self.is_live and not self.cleaned and self.now_ms >= self.until_ms:
            self.cleaned = True

    def _hold(self, process: str) -> None:
        if not self.is_live:
            self.epoch += 1
        if self.cleaned:
            self.successes, self.cleaned = 0, False
        self.holder, self.is_live, self.until_ms = process, True, self.now_ms + LEASE_MS
        self.replicas.pop(process, None)
        self.had_name.add(process)

    def register(self, process: str, uri: str, shows: bool) -> str:
        if self.is_live and process != self.holder:
            if not shows:
                return REFUSED
            self.replicas = {name: seen for name, seen in self.replicas.items() if self._is_heard(seen[0])}
            self.replicas[process] = self.now_ms, uri
            return REPLICA
        self.exists = True
        self._hold(process)
        self.status, self.uri = "ready", uri
        return HELD

    def beat(self, process: str, status: str, successes: int, number: int) -> str:
        if not self.exists:
            return UNKNOWN
        process = process or self.holder
        last = self.counted.get(process, 0)
        if process == self.holder:
            if 0 < number <= last and not self.cleaned:
                return REPEATED if number == last else STALE
            self._hold(process)
        elif process not in self.replicas:
            return REFUSED
        elif self.is_live:
            self.replicas[process] = self.now_ms, self.replicas[process][1]
            self._forget_silent()
            return REPLICA
        else:
            self.uri = self.replicas[process][1] or self.uri
            self._hold(process)
        self.status = status or self.status
        if not 0 < number <= last:
            self.successes += successes
            self.counted[process] = max(number, last)
        return HELD

    def deregister(self, process: str) -> str:
        if not self.exists:
            return UNKNOWN
        process = process or self.holder
        if process == self.holder:
            if self.is_live:
                self.is_live, self.until_ms = False, self.now_ms + CLEANUP_MS
            return GONE
        return GONE if self.replicas.pop(process, None) else REFUSED

    def _is_heard(self, seen_ms: int) -> bool:
        return self.now_ms < seen_ms + LEASE_MS

    def _forget_silent(self) -> None:
        self.replicas = {name: seen for name, seen in self.replicas.items() if self._is_heard(seen[0])}

    def shown_replicas(self) -> set[str]:
        return {name for name, seen in self.replicas.items() if self._is_heard(seen[0])}


def outcome_of(scenario: RegistryScenario, events: tuple[object, ...], *, is_goodbye: bool) -> str:
    if is_goodbye:
        return GONE
    if not events:
        return REPEATED
    return REPLICA if type(events[0]).__name__ == "ReplicaSeen" else HELD


processes = st.sampled_from(("p", "p", "p", "q", "q", "r"))
statuses = st.sampled_from(["", "busy"])
successes = st.integers(0, 3)
registrations = st.tuples(
    st.just("register"),
    processes,
    st.sampled_from(["", "x"]),
    st.sampled_from([ReplicaPolicy.SHOW, *ReplicaPolicy]),
)
numbered_beats = st.tuples(st.just("beat"), processes, statuses, successes, st.sampled_from([0, 1, 1, 2]))
steps = st.one_of(
    registrations,
    st.tuples(st.just("beat"), st.sampled_from(("", *PROCESSES)), statuses, successes, st.none()),
    numbered_beats,
    numbered_beats,
    st.tuples(st.just("deregister"), st.sampled_from(("", *PROCESSES))),
    st.tuples(st.just("wait"), st.sampled_from([1_000, 14_000, 29_999, LEASE_MS, LEASE_MS, CLEANUP_MS])),
)


REGISTERS = "register", "p", "", ReplicaPolicy.SHOW
COUNTS, AGAIN, LOSES_IT = ("beat", "p", "", 3, 0), ("beat", "p", "", 3, 1), ("wait", LEASE_MS)
OTHER_REGISTERS = "register", "q", "", ReplicaPolicy.SHOW


@given(st.lists(steps, min_size=5, max_size=40))
@example([REGISTERS, COUNTS, LOSES_IT, OTHER_REGISTERS, LOSES_IT, REGISTERS, AGAIN, AGAIN])
@example([REGISTERS, COUNTS, LOSES_IT, OTHER_REGISTERS, REGISTERS, LOSES_IT, AGAIN, COUNTS, AGAIN])
@example([REGISTERS, COUNTS, LOSES_IT, ("wait", CLEANUP_MS), AGAIN, AGAIN, COUNTS])
def test_a_component_behaves_as_the_model(run: list[tuple]) -> None:
    scenario, model = RegistryScenario(), Model()
    sent: dict[str, list[tuple[str, int, int]]] = {process: [] for process in PROCESSES}
    for action, *details in run:
        if action == "beat":
            details = numbered_beat(sent, *details)
        if action == "wait":
            model.pass_time(details[0])
            scenario.wait(details[0])
            let_time_act(scenario)
        else:
            expected = getattr(model, action)(
                *(
                    (details[0], details[1], details[2] is ReplicaPolicy.SHOW)
                    if action == "register"
                    else details
                )
            )
            assert take_step(scenario, action, details) == expected, (action, details)
        compare(scenario, model)
    assert replay(scenario) == scenario.worker


def numbered_beat(
    sent: dict[str, list[tuple[str, int, int]]], process: str, status: str, successes: int, back: int | None
) -> list:
    """`back`: 0 for a new number, 1 for the last heartbeat again, 2 for the one before it; None for a heartbeat without a number."""
    if back is None:
        return [process, status, successes, 0]
    beats = sent[process]
    if back and len(beats) >= back:
        return [process, *beats[-back]]
    beats.append((status, successes, len(beats) + 1))
    return [process, *beats[-1]]


def take_step(scenario: RegistryScenario, action: str, details: list) -> str:
    try:
        if action == "register":
            process, uri, policy = details
            return outcome_of(
                scenario, scenario.register(process, uri=uri, on_replica=policy), is_goodbye=False
            )
        if action == "beat":
            process, status, successes, number = details
            events = scenario.beat(process, status=status, successes=successes, sequence=number)
            return outcome_of(scenario, events, is_goodbye=False)
        return outcome_of(scenario, scenario.deregister(details[0]), is_goodbye=True)
    except RegistryEntryNotFound:
        return UNKNOWN
    except StaleHeartbeat:
        return STALE
    except (WorkerKeyHeld, SessionNotCurrent, SessionSuperseded):
        return REFUSED
    except LivenessError as error:
        raise AssertionError(f"the model expects no {error.reason}") from error


def let_time_act(scenario: RegistryScenario) -> None:
    worker = scenario.worker
    if worker is not None and worker.state is WorkerState.ACTIVE and scenario.now_ms >= worker.deadline_ms:
        scenario.expire()
    worker = scenario.worker
    if worker is not None and worker.state is WorkerState.INACTIVE and scenario.now_ms >= worker.deadline_ms:
        scenario.clean_up()


def compare(scenario: RegistryScenario, model: Model) -> None:
    worker = scenario.worker
    assert (worker is not None) == model.exists
    if worker is None:
        return
    entry = scenario.entry
    assert (worker.state is WorkerState.ACTIVE) == model.is_live
    assert (worker.state is WorkerState.CLEANED_UP) == model.cleaned
    assert (current_status(worker, entry) == "offline") == (not model.is_live)
    assert worker.session_id.partition("#")[0] == model.holder
    assert (entry.status, entry.uri, worker.epoch) == (model.status, model.uri, model.epoch)
    assert worker.successes == model.successes
    assert set(scenario.replicas) == model.shown_replicas()
    assert worker.session_id not in worker.superseded


def replay(scenario: RegistryScenario) -> Worker | None:
    worker: Worker | None = None
    for sequence, event in enumerate(scenario.log, start=1):
        at_ms = getattr(event, "at_ms", None)
        wall_ms = WALL_MS + (at_ms if at_ms is not None else 0)
        worker = evolve(worker, event, sequence, wall_ms)
    return worker
