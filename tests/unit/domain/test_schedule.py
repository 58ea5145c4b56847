"""Which ticks a schedule fires, compared with a plain list of its ticks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from liveness.domain import schedule as schedules
from liveness.domain.events import (
    FiredActivity,
    MissedPolicy,
    OverlapPolicy,
    ScheduleFired,
    ScheduleSpec,
    ScheduleTicksDropped,
)
from liveness.domain.schedule import CATCH_UP_MAX, TICKS_PER_LOOK_MAX, Schedule, ScheduleKey

KEY = ScheduleKey("orders", "s")
EVERY_MS = 10_000
WINDOW_MS = 15_000


def make(missed: MissedPolicy, overlap: OverlapPolicy = OverlapPolicy.ALLOW) -> Schedule:
    spec = ScheduleSpec(
        FiredActivity("report", "queue"),
        every_ms=EVERY_MS,
        missed=missed,
        overlap=overlap,
        window_ms=WINDOW_MS,
    )
    created = schedules.evolve(None, schedules.create(KEY, None, spec, 0, "")[0], 0)
    assert created is not None
    return created


def look_until_idle(schedule: Schedule, now_ms: int) -> tuple[Schedule, list[int]]:
    """What the runner does: look, apply, and look again."""
    fired: list[int] = []
    while (look := schedules.look(KEY, schedule, now_ms)) != schedules.NOTHING_DUE:
        events = [look.dropped] if look.dropped else []
        after = schedule
        for event in events:
            after = schedules.evolve(after, event, now_ms) or after
        for tick_ms in look.fire:
            firing = schedules.fire(KEY, after, tick_ms, lambda name: False)
            assert isinstance(firing, ScheduleFired)
            fired.append(firing.tick_ms)
            after = schedules.evolve(after, firing, now_ms) or after
        assert after.next_ms > schedule.next_ms, "each look gets further"
        schedule = after
    return schedule, fired


@given(
    st.sampled_from(MissedPolicy),
    st.lists(
        st.integers(1, 40_000) | st.integers(1, 3 * TICKS_PER_LOOK_MAX * EVERY_MS), min_size=1, max_size=8
    ),
)
def test_each_tick_is_fired_or_missed_and_never_twice(missed: MissedPolicy, steps: list[int]) -> None:
    schedule, now_ms, seen = make(missed), 0, 0
    for step_ms in steps:
        before_ms, now_ms = now_ms, now_ms + step_ms
        ticks = list(range(before_ms // EVERY_MS * EVERY_MS + EVERY_MS, now_ms + 1, EVERY_MS))
        seen += len(ticks)
        schedule, fired = look_until_idle(schedule, now_ms)
        if missed is MissedPolicy.ALL:
            expected = ticks[-CATCH_UP_MAX:]
        elif missed is MissedPolicy.ONCE or (ticks and now_ms - ticks[-1] <= WINDOW_MS):
            expected = ticks[-1:]
        else:
            expected = []
        assert fired == expected
        assert schedule.fired + schedule.missed == seen
        assert schedule.next_ms == now_ms // EVERY_MS * EVERY_MS + EVERY_MS


def test_a_tick_overlaps_while_the_activity_before_is_open() -> None:
    schedule = make(MissedPolicy.ONCE, OverlapPolicy.SKIP)
    first = schedules.fire(KEY, schedule, EVERY_MS, lambda name: True)
    assert isinstance(first, ScheduleFired)
    after = schedules.evolve(schedule, first, EVERY_MS)
    assert after is not None
    asked: list[str] = []

    def is_open(name: str) -> bool:
        asked.append(name)
        return True

    second = schedules.fire(KEY, after, 2 * EVERY_MS, is_open)
    assert isinstance(second, ScheduleTicksDropped)
    assert second.overlapping
    assert asked == [first.activity_id] == ["1970-01-01T00:00:10Z"]


def test_a_paused_schedule_is_never_due_and_resumes_with_the_next_tick() -> None:
    schedule = make(MissedPolicy.ALL)
    for event in schedules.pause(KEY, schedule, "why", ""):
        schedule = schedules.evolve(schedule, event, 0) or schedule
    assert schedules.look(KEY, schedule, 10 * EVERY_MS) == schedules.NOTHING_DUE
    assert schedules.next_ticks(schedule, 3) == []
    for event in schedules.resume(KEY, schedule, "", 10 * EVERY_MS, ""):
        schedule = schedules.evolve(schedule, event, 0) or schedule
    assert schedules.next_ticks(schedule, 2) == [11 * EVERY_MS, 12 * EVERY_MS]
    assert schedule.missed == 0


def test_a_cron_schedule_after_a_year_off_is_looked_at_in_bounded_steps() -> None:
    spec = ScheduleSpec(FiredActivity("report", "queue"), cron="* * * * *", time_zone="Europe/Berlin")
    schedule = make(MissedPolicy.ONCE)._replace(spec=spec, next_ms=60_000)
    look = schedules.look(KEY, schedule, 365 * 86_400_000)
    assert look.dropped is not None
    assert look.dropped.count == TICKS_PER_LOOK_MAX - 1
    assert look.fire == ()
