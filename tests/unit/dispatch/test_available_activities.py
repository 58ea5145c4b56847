"""The order in which a task queue hands out its activities: priorities, then keys by turns, then arrival."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from liveness.dispatch.available_activities import ActivityTypes, AvailableActivities
from liveness.domain.events import Priority
from liveness.domain.keys import ActivityKey


def key(number: int) -> ActivityKey:
    return ActivityKey("n", f"w{number}", "r", "a")


def hand_out(available: AvailableActivities, types: ActivityTypes = None) -> ActivityKey:
    first = next(available.in_order(types))
    available.discard(first, was_handed_out=True)
    return first


def test_lower_priority_keys_come_first_and_arrival_decides_within_one() -> None:
    available = AvailableActivities()
    for number, priority_key in enumerate((3, 5, 1, 3, 1)):
        available.add(key(number), "t", Priority(priority_key))
    assert [hand_out(available) for _ in range(5)] == [key(2), key(4), key(0), key(3), key(1)]


def test_a_key_with_a_huge_backlog_does_not_delay_another() -> None:
    available = AvailableActivities()
    for number in range(1_000):
        available.add(key(number), "t", Priority(3, "huge"))
    for _ in range(500):
        hand_out(available)
    for number in range(1_000, 1_003):
        available.add(key(number), "t", Priority(3, "small"))
    handed = [hand_out(available) for _ in range(6)]
    assert [one for one in handed if one in {key(1_000), key(1_001), key(1_002)}] == [
        key(1_000),
        key(1_001),
        key(1_002),
    ]


def test_weights_divide_the_turns() -> None:
    available = AvailableActivities()
    owners: dict[ActivityKey, str] = {}
    for number in range(600):
        owner = "heavy" if number % 2 else "light"
        owners[key(number)] = owner
        available.add(key(number), "t", Priority(3, owner, 3.0 if owner == "heavy" else 1.0))
    turns = Counter(owners[hand_out(available)] for _ in range(200))
    assert abs(turns["heavy"] - 150) <= 2


def test_a_cancelled_backlog_does_not_move_its_keys_turn() -> None:
    """Only what is handed out counts as a turn."""
    available = AvailableActivities()
    for number in range(100):
        available.add(key(number), "t", Priority(3, "a"))
    for number in range(50, 100):
        available.discard(key(number))
    available.add(key(200), "t", Priority(3, "b"))
    assert key(200) in [hand_out(available) for _ in range(2)]


def test_a_key_that_was_away_has_saved_nothing() -> None:
    available = AvailableActivities()
    available.add(key(0), "t", Priority(3, "late"))
    hand_out(available)
    for number in range(1, 101):
        available.add(key(number), "t", Priority(3, "busy"))
    for _ in range(50):
        hand_out(available)
    for number in range(200, 210):
        available.add(key(number), "t", Priority(3, "late"))
    first_six = {hand_out(available) for _ in range(6)}
    assert len(first_six & {key(number) for number in range(200, 210)}) == 3


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "add", "add", "hand out", "cancel"]),
            st.integers(0, 12),
            st.sampled_from("xy"),
            st.builds(
                Priority, st.integers(1, 3), st.sampled_from(["", "a", "b"]), st.sampled_from([1.0, 2.0])
            ),
        ),
        max_size=60,
    ),
    st.none() | st.frozensets(st.sampled_from("xy"), min_size=1),
)
def test_the_order_is_one_of_priorities_and_of_arrival_within_each_key(
    steps: list[tuple[str, int, str, Priority]], wanted: ActivityTypes
) -> None:
    available = AvailableActivities()
    model: dict[ActivityKey, tuple[str, Priority, int]] = {}
    for arrival, (step, number, kind, priority) in enumerate(steps):
        if step == "add":
            known = model.get(key(number))
            if known is None or (known[0], known[1][:2]) != (kind, priority[:2]):
                model[key(number)] = (kind, priority, arrival)
            available.add(key(number), kind, priority)
        elif step == "cancel":
            model.pop(key(number), None)
            available.discard(key(number))
        elif model:
            first = hand_out(available)
            assert model[first][1].priority_key == min(known[1].priority_key for known in model.values())
            del model[first]
    listed = list(available.in_order(wanted))
    assert sorted(listed) == sorted(
        one for one, known in model.items() if wanted is None or known[0] in wanted
    )
    assert [model[one][1].priority_key for one in listed] == sorted(
        model[one][1].priority_key for one in listed
    )
    for lane in {known[1][:2] for known in model.values()}:
        arrivals = [model[one][2] for one in listed if model[one][1][:2] == lane]
        assert arrivals == sorted(arrivals)
    assert (available.count(wanted), available.has_any(wanted)) == (len(listed), bool(listed))
    assert set(available.types) == {known[0] for known in model.values()}
