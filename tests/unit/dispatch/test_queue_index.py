"""The index of a task queue keeps the order of arrival for any choice of types."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from liveness.dispatch.available_activities import ActivityTypes, AvailableActivities
from liveness.dispatch.queue_index import PollsByTypes, RemoteOffers
from liveness.domain.keys import ActivityKey

TYPES = ("", "a", "b", "c")
types = st.sampled_from(TYPES)
choices = st.none() | st.frozensets(types, min_size=1)
keys = st.integers(0, 8)


def key(number: int) -> ActivityKey:
    return ActivityKey("n", f"w{number}", "r", "a")


@given(st.lists(st.tuples(st.booleans(), keys, types), max_size=40), choices)
def test_available_activities_are_listed_as_in_a_plain_list(
    steps: list[tuple[bool, int, str]], wanted: ActivityTypes
) -> None:
    available = AvailableActivities()
    expected: list[tuple[int, str]] = []
    for is_added, number, activity_type in steps:
        if is_added:
            if (number, activity_type) not in expected:
                expected = [entry for entry in expected if entry[0] != number]
                expected.append((number, activity_type))
            is_first = [entry[1] for entry in expected].count(activity_type) == 1
            was_new = (key(number) not in available) or available.type_of(key(number)) != activity_type
            assert available.add(key(number), activity_type) == (is_first and was_new)
        else:
            expected = [entry for entry in expected if entry[0] != number]
            available.discard(key(number))
    chosen = [key(number) for number, kind in expected if wanted is None or kind in wanted]
    assert list(available.in_order(wanted)) == chosen
    assert (available.count(wanted), available.has_any(wanted)) == (len(chosen), bool(chosen))
    assert list(available) == [key(number) for number, _ in expected]
    assert len(available) == len(expected)
    assert set(available.types) == {kind for _, kind in expected}


@given(
    st.lists(st.tuples(st.sampled_from("xyz"), st.lists(types, max_size=3)), max_size=10),
    st.sampled_from("xyz"),
    choices,
)
def test_a_node_that_had_nothing_is_forgotten_for_the_types_it_was_asked_for_only(
    offers: list[tuple[str, list[str]]], asked: str, wanted: ActivityTypes
) -> None:
    remote = RemoteOffers()
    known: set[tuple[str, str | None]] = set()
    for address, names in offers:
        remote.add(address, names)
        known |= {(address, name) for name in names or (None,)}
    remote.forget(asked, wanted)
    known = {
        (address, name)
        for address, name in known
        if address != asked or (wanted is not None and name not in wanted)
    }
    for name in TYPES:
        found = remote.first_address(frozenset({name}))
        assert (found is None) == (name not in {kind for _, kind in known})
        assert found is None or (found, name) in known
    assert bool(remote) == bool(known)
    assert (remote.first_address(None) is None) == (not known)


def test_nodes_that_are_gone_are_forgotten() -> None:
    remote = RemoteOffers()
    remote.add("x", ["a"])
    remote.add("y", ["a", "b"])
    remote.retain(["x"])
    assert remote.first_address(frozenset({"a"})) == "x"
    assert remote.first_address(frozenset({"b"})) is None
    remote.retain([])
    assert not remote


def test_an_offer_without_types_is_for_polls_without_types() -> None:
    """Its node is of an older version and would hand out activities of any type."""
    remote = RemoteOffers()
    remote.add("old", ())
    assert remote.first_address(frozenset({"a"})) is None
    assert remote.first_address(None) == "old"


@given(st.lists(st.tuples(st.booleans(), keys, choices), max_size=30), st.frozensets(types))
def test_polls_compete_for_what_is_available_and_for_nothing_if_nothing_is(
    steps: list[tuple[bool, int, ActivityTypes]], available: frozenset[str]
) -> None:
    polls: PollsByTypes[tuple[int, ActivityTypes]] = PollsByTypes()
    expected: list[tuple[int, ActivityTypes]] = []
    for is_added, number, wanted in steps:
        entry = number, wanted
        if is_added and entry not in expected:
            expected.append(entry)
            polls.add(wanted, entry)
        elif not is_added and entry in expected:
            expected.remove(entry)
            polls.discard(wanted, entry)
    competing = {each for _, each in expected if (available if each is None else each & available)}
    assert set(polls.groups_for(available)) == competing
    assert list(polls.in_order(list(competing))) == [entry for entry in expected if entry[1] in competing]
    assert (len(polls), sorted(polls, key=expected.index)) == (len(expected), expected)
    for name in TYPES:
        assert polls.has_any_for(name) == any(each is None or name in each for _, each in expected)
