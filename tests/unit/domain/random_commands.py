"""Random sequences of commands for one worker, valid and invalid, with few distinct values so that they
collide."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import strategies as st

from liveness.domain.policy import Policy
from liveness.domain.worker import NO_PROFILE, BoundActivity, Profile, WorkerStatus
from tests.unit.domain.worker_scenario import WorkerScenario, activity

QUOTA = 2
POLICY = Policy(
    max_bindings_per_worker=QUOTA,
    min_lease_ms=10,
    default_lease_ms=30,
    max_lease_ms=100,
    cleanup_delay_ms=50,
    tombstone_retention_ms=200,
)


class Beat(NamedTuple):
    step: int | None
    """The offset from the last sequence number; None for a heartbeat without one."""
    session_id: str | None
    """None for the worker's current session."""
    fields: dict[str, Any]

    def apply(self, scenario: WorkerScenario) -> None:
        known = scenario.worker.sequence if scenario.worker else 0
        sequence = 0 if self.step is None else max(known + self.step, 0)
        session_id = self.session_id
        if session_id is None:
            session_id = scenario.worker.session_id if scenario.worker else "a"
        scenario.beat(sequence=sequence, session_id=session_id, policy=POLICY, **self.fields)


class Leave(NamedTuple):
    session_id: str
    forced: bool

    def apply(self, scenario: WorkerScenario) -> None:
        if scenario.worker is not None:
            leave = scenario.force_out if self.forced else scenario.shut_down
            leave(self.session_id, policy=POLICY)


class Wait(NamedTuple):
    ms: int

    def apply(self, scenario: WorkerScenario) -> None:
        scenario.wait(self.ms)


class Silence(NamedTuple):
    """Wait until the next deadline and expire the lease."""

    def apply(self, scenario: WorkerScenario) -> None:
        if scenario.worker is not None:
            scenario.wait(max(scenario.worker.deadline_ms - scenario.now_ms, 0))
            scenario.expire(POLICY)


class Timer(NamedTuple):
    """Run a timer, whether it is due or not; or forget the worker, as an operator does."""

    kind: str

    def apply(self, scenario: WorkerScenario) -> None:
        if scenario.worker is not None:
            if self.kind == "expire":
                scenario.expire(POLICY)
            elif self.kind == "clean up":
                scenario.clean_up(POLICY)
            elif self.kind == "end drain":
                scenario.end_drain(POLICY)
            elif self.kind == "forget now":
                scenario.forget_now(policy=POLICY)
            else:
                scenario.forget()


class Order(NamedTuple):
    """An order by an operator or the service, in any state of the worker."""

    kind: str
    ms: int

    def apply(self, scenario: WorkerScenario) -> None:
        if scenario.worker is not None:
            if self.kind == "pause":
                scenario.pause()
            elif self.kind == "resume":
                scenario.resume()
            elif self.kind == "drain":
                scenario.drain(scenario.now_ms + self.ms if self.ms else 0)
            elif self.kind == "attach":
                scenario.attach(self.ms)
            else:
                scenario.disconnect(scenario.now_ms - self.ms, POLICY)


class HandOut(NamedTuple):
    activity: BoundActivity

    def apply(self, scenario: WorkerScenario) -> None:
        if scenario.worker is not None:
            scenario.bind(self.activity, POLICY)


class EndBinding(NamedTuple):
    activity: BoundActivity
    taken: bool

    def apply(self, scenario: WorkerScenario) -> None:
        if scenario.worker is not None:
            scenario.end_binding(self.activity, taken=self.taken)


Command = Beat | Leave | Wait | Silence | Timer | Order | HandOut | EndBinding

one_activity = st.builds(activity, st.sampled_from("abc"), st.integers(1, 2))
some_activities = st.lists(one_activity, max_size=2).map(tuple)
sessions = st.sampled_from(["a", "b", "c", ""])
beats = st.builds(
    Beat,
    # Mostly the next number of the session; also repeated, overtaken, skipped and missing ones.
    st.sampled_from([1, 1, 1, 1, 1, 0, -1, 2, None]),
    # Mostly the current session; otherwise almost every command would be a restart.
    st.sampled_from([None, None, None, None, None, "a", "b", "c", "d", ""]),
    st.fixed_dictionaries(
        {"bound": some_activities, "unbound": some_activities},
        optional={
            "requested_ms": st.sampled_from([1, 20, 500]),
            "full_bindings": st.sampled_from([True, False, False, False]),
            "profile": st.sampled_from([NO_PROFILE, Profile(task_queue="q"), Profile(host_name="h")]),
            "status": st.sampled_from(WorkerStatus),
            "last_error": st.just("broken"),
            "successes": st.integers(0, 2),
            "errors": st.integers(0, 2),
            "loop_lag_ms": st.integers(0, 2),
            "new_incarnation": st.booleans(),
            "lease_epoch": st.integers(0, 4),
        },
    ),
)
leaves = st.builds(Leave, sessions, st.booleans())
waits = st.builds(Wait, st.sampled_from([1, 9, 30, 60, 250]))
timers = st.builds(
    Timer, st.sampled_from(["expire", "clean up", "clean up", "forget", "forget now", "end drain"])
)
orders = st.builds(
    Order,
    st.sampled_from(["pause", "resume", "resume", "drain", "attach", "attach", "disconnect"]),
    st.sampled_from([0, 5, 20]),
)
hands = st.builds(HandOut, one_activity)
ends = st.builds(EndBinding, one_activity, st.booleans())

# Mostly heartbeats and hand-outs, by repetition in the list: `one_of` counts equal strategies once.
commands = st.sampled_from(
    [
        *[beats] * 12,
        *[hands] * 5,
        *[ends, orders, waits, waits, leaves, timers],
        st.builds(Silence),
    ]
).flatmap(lambda kind: kind)
scenarios = st.lists(commands, min_size=8, max_size=24)
