"""Which activities a worker holds, and when its word about them is in doubt."""

from typing import Any

import pytest

from liveness.domain.errors import BindingQuotaExceeded, InvalidField
from liveness.domain.events import BindingsChanged, LeaseRenewed
from liveness.domain.policy import Policy
from liveness.domain.worker import Profile
from tests.unit.domain.worker_scenario import WorkerScenario, activity, registered


def bindings_changed(events: tuple[object, ...]) -> BindingsChanged:
    [change] = [event for event in events if isinstance(event, BindingsChanged)]
    return change


# -- taking up and letting go


def test_only_the_changes_are_written() -> None:
    scenario = registered(bound=tuple(activity(name) for name in "abc"))
    events = scenario.beat(bound=(activity("d"), activity("a")), unbound=(activity("b"),))
    assert events == (
        BindingsChanged(bound=(activity("d"),), unbound=(activity("b").id,), resync=False),
        LeaseRenewed(2, 0, 0, 0),
    )
    assert scenario.held == {("a", 1), ("c", 1), ("d", 1)}


def test_a_heartbeat_that_repeats_what_is_known_is_a_plain_renewal() -> None:
    scenario = registered(bound=(activity("a"),))
    assert scenario.beat(bound=(activity("a"),)) == (LeaseRenewed(2, 0, 0, 0),)


def test_what_was_taken_up_and_finished_between_two_heartbeats_leaves_no_trace() -> None:
    scenario = registered()
    assert scenario.beat(bound=(activity("a"),), unbound=(activity("a"),)) == (LeaseRenewed(2, 0, 0, 0),)
    assert scenario.held == set()


def test_what_was_taken_up_and_finished_before_the_first_heartbeat_is_not_held() -> None:
    scenario = registered(bound=(activity("a"), activity("b")), unbound=(activity("a"),))
    assert scenario.held == {("b", 1)}


def test_a_later_attempt_replaces_the_earlier_one() -> None:
    scenario = registered(bound=(activity("a", attempt=1),))
    scenario.beat(bound=(activity("a", attempt=2),))
    assert scenario.held == {("a", 2)}
    assert scenario.rescheduled == [], "the worker knows best what became of the earlier attempt"


def test_finishing_one_attempt_and_taking_up_the_next_in_one_heartbeat() -> None:
    scenario = registered(bound=(activity("a", attempt=1),))
    scenario.beat(unbound=(activity("a", attempt=1),), bound=(activity("a", attempt=2),))
    assert scenario.held == {("a", 2)}


def test_taking_up_and_finishing_a_later_attempt_lets_go_of_the_earlier_one_too() -> None:
    scenario = registered(bound=(activity("a", attempt=1),))
    scenario.beat(bound=(activity("a", attempt=2),), unbound=(activity("a", attempt=2),))
    assert scenario.held == set()


def test_unbinding_an_attempt_that_is_not_the_held_one_changes_nothing() -> None:
    scenario = registered(bound=(activity("a", attempt=2),))
    assert scenario.beat(unbound=(activity("a", attempt=1),)) == (LeaseRenewed(2, 0, 0, 0),)
    assert scenario.held == {("a", 2)}


def test_a_changed_token_is_kept_for_the_reschedule() -> None:
    scenario = registered(bound=(activity("a", token=b"old"),))
    scenario.beat(bound=(activity("a", token=b"new"),))
    scenario.go_silent()
    assert [task.activity.token for task in scenario.tasks] == [b"new"]


def test_of_an_activity_named_twice_the_last_word_counts() -> None:
    scenario = registered(bound=(activity("a", attempt=1), activity("a", attempt=2)))
    assert scenario.held == {("a", 2)}


def test_activities_differ_by_workflow_and_run() -> None:
    first = activity("a")
    others = (first._replace(workflow_id="other"), first._replace(run_id="other"))
    scenario = registered(bound=(first, *others))
    scenario.beat(unbound=(first,))
    assert set(scenario.known.bindings.values()) == set(others)


# -- task queues


def test_an_activity_without_a_task_queue_is_on_its_workers() -> None:
    scenario = registered(
        profile=Profile(task_queue="mine"), bound=(activity("a", task_queue=""), activity("b"))
    )
    scenario.beat(bound=(activity("c", task_queue=""),))
    queues = {bound.activity_id: bound.task_queue for bound in scenario.known.bindings.values()}
    assert queues == {"a": "mine", "b": "queue", "c": "mine"}


def test_an_activity_without_any_task_queue_is_refused() -> None:
    scenario = registered()
    for bad in (
        {"bound": (activity("a", task_queue=""),)},
        {"session_id": "b", "bound": (activity("a", task_queue=""),)},
    ):
        before = scenario.known
        with pytest.raises(InvalidField) as refused:
            scenario.beat(sequence=2, **bad)
        assert refused.value.fields["field"] == "heartbeat.bound_activities.task_queue"
        assert scenario.known == before


# -- the whole set


def test_a_full_set_replaces_all_that_is_held() -> None:
    scenario = registered(bound=tuple(activity(name) for name in "abc"))
    change = bindings_changed(scenario.beat(full_bindings=True, bound=(activity("c"), activity("d"))))
    assert (set(change.unbound), change.bound) == ({activity("a").id, activity("b").id}, (activity("d"),))
    assert scenario.held == {("c", 1), ("d", 1)}
    assert scenario.rescheduled == [], "the worker has finished them"


def test_an_empty_full_set_lets_go_of_everything() -> None:
    scenario = registered(bound=(activity("a"),))
    scenario.beat(full_bindings=True)
    assert scenario.held == set()


def test_a_full_set_that_is_known_is_a_plain_renewal() -> None:
    scenario = registered(bound=(activity("a"),))
    assert scenario.beat(full_bindings=True, bound=(activity("a"),)) == (LeaseRenewed(2, 0, 0, 0),)


def test_a_full_set_clears_what_was_lost_and_is_not_in_it() -> None:
    scenario = registered(bound=(activity("a"), activity("b"), activity("c"))).go_silent()
    scenario.beat()
    scenario.beat(full_bindings=True, bound=(activity("b"), activity("c")), unbound=(activity("c"),))
    assert scenario.lost == {("b", 1)}


# -- doubt


def test_a_gap_in_the_sequence_puts_the_bindings_in_doubt() -> None:
    scenario = registered()
    doubts = []
    for sequence in (2, 4, 5):
        scenario.beat(sequence=sequence)
        doubts.append(scenario.known.resync)
    assert doubts == [False, True, True], "the doubt stays until the whole set is known"


def test_unbinding_what_was_never_heard_of_puts_the_bindings_in_doubt() -> None:
    scenario = registered()
    change = bindings_changed(scenario.beat(unbound=(activity("unheard of"),)))
    assert change == BindingsChanged(bound=(), unbound=(), resync=True)
    assert scenario.known.resync


def test_doubt_that_is_there_already_is_not_written_again() -> None:
    scenario = registered()
    scenario.beat(unbound=(activity("x"),))
    assert scenario.beat(unbound=(activity("y"),)) == (LeaseRenewed(3, 0, 0, 0),)


@pytest.mark.parametrize("fields", [{"session_id": ""}, {"sequence": 0}])
def test_clients_without_session_or_sequence_raise_no_doubt_by_unbinding(fields: dict[str, Any]) -> None:
    """They may repeat what was applied already, and nobody would notice."""
    scenario = registered(**{"sequence": 1} | fields)
    again: dict[str, Any] = {"sequence": 2, "unbound": (activity("x"),)} | fields
    assert len(scenario.beat(**again)) == 1
    assert not scenario.known.resync


def test_a_client_without_sequence_has_no_gaps() -> None:
    scenario = registered(sequence=0)
    scenario.beat(sequence=0)
    assert not scenario.known.resync


def test_the_whole_set_removes_the_doubt() -> None:
    scenario = registered()
    scenario.beat(sequence=9)
    change = bindings_changed(scenario.beat(full_bindings=True))
    assert change == BindingsChanged(bound=(), unbound=(), resync=False)
    assert not scenario.known.resync


def test_the_whole_set_leaves_no_doubt_even_after_a_gap_of_its_own() -> None:
    scenario = registered()
    scenario.beat(sequence=9, full_bindings=True, bound=(activity("a"),))
    assert not scenario.known.resync
    scenario.beat(sequence=19, full_bindings=True, bound=(activity("a"),))
    assert not scenario.known.resync


@pytest.mark.parametrize(
    ("fields", "in_doubt"),
    [
        ({"sequence": 1}, False),
        ({"sequence": 0}, False),
        ({"sequence": 5}, True),
        ({"sequence": 5, "full_bindings": True}, False),
    ],
)
def test_a_first_heartbeat_that_is_not_the_first_leaves_doubt(
    fields: dict[str, Any], *, in_doubt: bool
) -> None:
    assert registered(**fields).known.resync is in_doubt
    replaced = registered(session_id="old", sequence=7)
    replaced.beat(session_id="new", **fields)
    assert replaced.known.resync is in_doubt


@pytest.mark.parametrize(("sequence", "in_doubt"), [(4, False), (5, True)])
def test_a_resurrection_leaves_doubt_if_a_heartbeat_went_missing_before_it(
    sequence: int, *, in_doubt: bool
) -> None:
    scenario = registered()
    scenario.beat(sequence=2)
    scenario.beat(sequence=3)
    scenario.go_silent()
    scenario.beat(sequence=sequence)
    assert scenario.known.resync is in_doubt


def test_leaving_ends_the_doubt() -> None:
    scenario = registered()
    scenario.beat(sequence=9)
    scenario.shut_down()
    assert not scenario.known.resync


# -- what was lost


def back_from_silence(*names: str) -> WorkerScenario:
    """A worker that lost its activities to a silence and is back."""
    scenario = registered(bound=tuple(activity(name) for name in names)).go_silent()
    scenario.beat()
    return scenario


def test_a_lost_activity_is_to_be_cancelled_until_it_is_unbound() -> None:
    scenario = back_from_silence("a", "b")
    scenario.beat()
    assert scenario.lost == {("a", 1), ("b", 1)}
    scenario.beat(unbound=(activity("a"),))
    assert scenario.lost == {("b", 1)}
    assert not scenario.known.resync


def test_unbinding_a_lost_attempt_keeps_the_later_attempt_that_is_held() -> None:
    """The reschedule of its own lost activity may come back to the same worker. If the later attempt were let go
    here, nobody would reschedule it when this worker dies."""
    scenario = back_from_silence("a")
    scenario.beat(bound=(activity("a", attempt=2),))
    scenario.beat(unbound=(activity("a", attempt=1),))
    assert (scenario.held, scenario.lost) == ({("a", 2)}, set())
    scenario.go_silent()
    assert scenario.rescheduled == [("a", 1, 1), ("a", 2, 2)]


def test_cancelling_a_lost_attempt_and_taking_up_the_next_in_one_heartbeat() -> None:
    scenario = back_from_silence("a")
    scenario.beat(unbound=(activity("a", attempt=1),), bound=(activity("a", attempt=2),))
    assert (scenario.held, scenario.lost) == ({("a", 2)}, set())


def test_an_activity_that_was_lost_and_is_declared_again_is_held_and_still_to_be_cancelled() -> None:
    """Its reschedule stands; that the worker goes on with it does not make it its own again."""
    scenario = registered(bound=(activity("a"),)).go_silent()
    scenario.beat(bound=(activity("a"),))
    assert (scenario.held, scenario.lost) == ({("a", 1)}, {("a", 1)})
    scenario.beat(unbound=(activity("a"),))
    assert (scenario.held, scenario.lost) == (set(), set())


# -- quota


TWO = Policy(max_bindings_per_worker=2)


def test_a_worker_may_hold_as_many_as_its_quota() -> None:
    scenario = registered(policy=TWO, bound=(activity("a"),))
    scenario.beat(policy=TWO, bound=(activity("b"),))
    assert len(scenario.held) == 2


@pytest.mark.parametrize("session_id", ["a", "b"])
def test_one_more_is_refused_whole(session_id: str) -> None:
    scenario = registered(policy=TWO, bound=(activity("a"), activity("b")))
    before = scenario.known
    bound = tuple(activity(name) for name in "abc")
    with pytest.raises(BindingQuotaExceeded) as refused:
        scenario.beat(sequence=2, session_id=session_id, policy=TWO, bound=bound, successes=5)
    assert refused.value.fields == {"worker": "worker-1", "count": 3, "limit": 2}
    assert scenario.known == before


def test_a_first_heartbeat_above_the_quota_registers_nobody() -> None:
    scenario = WorkerScenario()
    with pytest.raises(BindingQuotaExceeded):
        scenario.beat(policy=TWO, bound=tuple(activity(name) for name in "abc"))
    assert scenario.worker is None


def test_the_quota_counts_what_is_held_afterwards() -> None:
    scenario = registered(policy=TWO, bound=(activity("a"), activity("b")))
    scenario.beat(policy=TWO, unbound=(activity("a"),), bound=(activity("c"),))
    assert scenario.held == {("b", 1), ("c", 1)}
    scenario.beat(policy=TWO, bound=(activity("d"),), unbound=(activity("d"),))
    scenario.beat(policy=TWO, bound=(activity("b", attempt=2),))
    assert scenario.held == {("b", 2), ("c", 1)}
    scenario.beat(policy=TWO, full_bindings=True, bound=(activity("x"), activity("y")))
    assert scenario.held == {("x", 1), ("y", 1)}


def test_a_worker_above_a_quota_that_was_lowered_may_shrink_but_not_grow() -> None:
    scenario = registered(bound=tuple(activity(name) for name in "abcd"))
    scenario.beat(policy=TWO)
    scenario.beat(policy=TWO, unbound=(activity("a"),))
    assert len(scenario.held) == 3
    scenario.beat(policy=TWO, unbound=(activity("b"),), bound=(activity("e"),))
    assert len(scenario.held) == 3
    with pytest.raises(BindingQuotaExceeded):
        scenario.beat(policy=TWO, bound=(activity("f"),))


def test_a_cancelled_activity_that_is_held_again_counts_once() -> None:
    scenario = back_from_silence("a")
    scenario.beat(policy=TWO, bound=(activity("a", attempt=2), activity("b")))
    scenario.beat(policy=TWO, unbound=(activity("a", attempt=1),))
    assert scenario.held == {("a", 2), ("b", 1)}


def test_a_later_attempt_counts_also_while_the_lost_one_is_cancelled() -> None:
    scenario = back_from_silence("a")
    scenario.beat(policy=TWO, bound=(activity("a", attempt=2), activity("b")))
    with pytest.raises(BindingQuotaExceeded):
        scenario.beat(policy=TWO, unbound=(activity("a", attempt=1),), bound=(activity("c"),))
