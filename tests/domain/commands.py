"""Random stories of a worker: any sequence of commands, sensible or not, from a small world where things collide."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import strategies as st

from liveness.domain.policy import Policy
from liveness.domain.worker import NO_PROFILE, BoundActivity, Profile, WorkerStatus
from tests.domain.story import Story, activity

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
    """From the last sequence; None for a heartbeat without one."""
    session_id: str | None
    """None for the worker's own."""
    fields: dict[str, Any]

    def tell(self, story: Story) -> None:
        known = story.worker.sequence if story.worker else 0
        sequence = 0 if self.step is None else max(known + self.step, 0)
        session_id = self.session_id
        if session_id is None:
            session_id = story.worker.session_id if story.worker else "a"
        story.beat(sequence=sequence, session_id=session_id, policy=POLICY, **self.fields)


class Leave(NamedTuple):
    session_id: str
    forced: bool

    def tell(self, story: Story) -> None:
        if story.worker is not None:
            leave = story.force_out if self.forced else story.shut_down
            leave(self.session_id, policy=POLICY)


class Wait(NamedTuple):
    ms: int

    def tell(self, story: Story) -> None:
        story.wait(self.ms)


class Silence(NamedTuple):
    """Until the next deadline has passed."""

    def tell(self, story: Story) -> None:
        if story.worker is not None:
            story.wait(max(story.worker.deadline_ms - story.now_ms, 0))
            story.expire(POLICY)


class Timer(NamedTuple):
    """Fires, whether it is due or not."""

    kind: str

    def tell(self, story: Story) -> None:
        if story.worker is not None:
            if self.kind == "expire":
                story.expire(POLICY)
            elif self.kind == "clean up":
                story.clean_up(POLICY)
            elif self.kind == "end drain":
                story.end_drain(POLICY)
            else:
                story.forget()


class Order(NamedTuple):
    """What operators and the service want of the worker, whatever state it is in."""

    kind: str
    ms: int

    def tell(self, story: Story) -> None:
        if story.worker is not None:
            if self.kind == "pause":
                story.pause()
            elif self.kind == "resume":
                story.resume()
            elif self.kind == "drain":
                story.drain(story.now_ms + self.ms if self.ms else 0)
            elif self.kind == "attach":
                story.attach(self.ms)
            else:
                story.disconnect(story.now_ms - self.ms, POLICY)


class Hand(NamedTuple):
    activity: BoundActivity

    def tell(self, story: Story) -> None:
        if story.worker is not None:
            story.hand(self.activity, POLICY)


class EndBinding(NamedTuple):
    activity: BoundActivity
    taken: bool

    def tell(self, story: Story) -> None:
        if story.worker is not None:
            story.end_binding(self.activity, taken=self.taken)


Command = Beat | Leave | Wait | Silence | Timer | Order | Hand | EndBinding

one_activity = st.builds(activity, st.sampled_from("abc"), st.integers(1, 2))
some_activities = st.lists(one_activity, max_size=2).map(tuple)
sessions = st.sampled_from(["a", "b", "c", ""])
beats = st.builds(
    Beat,
    # Mostly the next number of the worker's session; also repeated, overtaken, lost and missing ones.
    st.sampled_from([1, 1, 1, 1, 1, 0, -1, 2, None]),
    # Mostly the session there is, or every story would be one of restarts.
    st.sampled_from([None, None, None, None, None, "a", "b", "c", ""]),
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
        },
    ),
)
leaves = st.builds(Leave, sessions, st.booleans())
waits = st.builds(Wait, st.sampled_from([1, 9, 30, 60, 250]))
timers = st.builds(Timer, st.sampled_from(["expire", "clean up", "forget", "end drain"]))
orders = st.builds(
    Order,
    st.sampled_from(["pause", "resume", "resume", "drain", "attach", "attach", "disconnect"]),
    st.sampled_from([0, 5, 20]),
)
hands = st.builds(Hand, one_activity)
ends = st.builds(EndBinding, one_activity, st.booleans())

# Mostly heartbeats, and what a worker is handed between them. By weight: `one_of` counts the same strategy once.
commands = st.sampled_from(
    [
        *[beats] * 12,
        *[hands] * 5,
        *[ends, orders, waits, waits, leaves, timers],
        st.builds(Silence),
    ]
).flatmap(lambda kind: kind)
stories = st.lists(commands, min_size=8, max_size=24)
