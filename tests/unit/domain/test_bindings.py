"""The activities a worker holds, and when the service asks it for the whole set again (resync)."""

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


# -- binding and unbinding


def test_a_heartbeat_writes_only_the_changes_of_bindings() -> None:
    scenario = registered(bound=tuple(activity(name) for name in "abc"))
    events = scenario.beat(bound=(activity("d"), activity("a")), unbound=(activity("b"),))
    assert events == (
        BindingsChanged(bound=(activity("d"),), unbound=(activity("b").id,), resync=False),
        LeaseRenewed(2, 0, 0, 0),
    )
    assert scenario.held == {("a", 1), ("c", 1), ("d", 1)}


def test_a_heartbeat_that_repeats_known_bindings_is_a_plain_renewal() -> None:
    scenario = registered(bound=(activity("a"),))
    assert scenario.beat(bound=(activity("a"),)) == (LeaseRenewed(2, 0, 0, 0),)


def test_an_activity_bound_and_unbound_in_one_heartbeat_writes_no_event() -> None:
    scenario = registered()
    assert scenario.beat(bound=(activity("a"),), unbound=(activity("a"),)) == (LeaseRenewed(2, 0, 0, 0),)
    assert scenario.held == set()


def test_an_activity_bound_and_unbound_in_the_first_heartbeat_is_not_held() -> None:
    scenario = registered(bound=(activity("a"), activity("b")), unbound=(activity("a"),))
    assert scenario.held == {("b", 1)}


def test_a_later_attempt_replaces_the_earlier_one() -> None:
    scenario = registered(bound=(activity("a", attempt=1),))
    scenario.beat(bound=(activity("a", attempt=2),))
    assert scenario.held == {("a", 2)}
    assert scenario.rescheduled == [], "the worker has ended the earlier attempt itself"


def test_one_heartbeat_can_unbind_an_attempt_and_bind_the_next() -> None:
    scenario = registered(bound=(activity("a", attempt=1),))
    scenario.beat(unbound=(activity("a", attempt=1),), bound=(activity("a", attempt=2),))
    assert scenario.held == {("a", 2)}


def test_binding_and_unbinding_a_later_attempt_unbinds_the_earlier_one_too() -> None:
    scenario = registered(bound=(activity("a", attempt=1),))
    scenario.beat(bound=(activity("a", attempt=2),), unbound=(activity("a", attempt=2),))
    assert scenario.held == set()


def test_unbinding_an_attempt_that_is_not_held_changes_nothing() -> None:
    scenario = registered(bound=(activity("a", attempt=2),))
    assert scenario.beat(unbound=(activity("a", attempt=1),)) == (LeaseRenewed(2, 0, 0, 0),)
    assert scenario.held == {("a", 2)}


def test_the_reschedule_carries_the_newest_token() -> None:
    scenario = registered(bound=(activity("a", token=b"old"),))
    scenario.beat(bound=(activity("a", token=b"new"),))
    scenario.go_silent()
    assert [task.activity.token for task in scenario.tasks] == [b"new"]


def test_the_last_mention_of_an_activity_in_a_heartbeat_counts() -> None:
    scenario = registered(bound=(activity("a", attempt=1), activity("a", attempt=2)))
    assert scenario.held == {("a", 2)}


def test_activities_differ_by_workflow_and_run() -> None:
    first = activity("a")
    others = (first._replace(workflow_id="other"), first._replace(run_id="other"))
    scenario = registered(bound=(first, *others))
    scenario.beat(unbound=(first,))
    assert set(scenario.known.bindings.values()) == set(others)


# -- task queues


def test_an_activity_without_a_task_queue_gets_its_workers_queue() -> None:
    scenario = registered(
        profile=Profile(task_queue="mine"), bound=(activity("a", task_queue=""), activity("b"))
    )
    scenario.beat(bound=(activity("c", task_queue=""),))
    queues = {bound.activity_id: bound.task_queue for bound in scenario.known.bindings.values()}
    assert queues == {"a": "mine", "b": "queue", "c": "mine"}


def test_an_activity_is_refused_if_neither_it_nor_its_worker_has_a_task_queue() -> None:
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


# -- full sets of bindings


def test_a_full_set_replaces_all_bindings() -> None:
    scenario = registered(bound=tuple(activity(name) for name in "abc"))
    change = bindings_changed(scenario.beat(full_bindings=True, bound=(activity("c"), activity("d"))))
    assert (set(change.unbound), change.bound) == ({activity("a").id, activity("b").id}, (activity("d"),))
    assert scenario.held == {("c", 1), ("d", 1)}
    assert scenario.rescheduled == [], "the worker has finished them"


def test_an_empty_full_set_unbinds_everything() -> None:
    scenario = registered(bound=(activity("a"),))
    scenario.beat(full_bindings=True)
    assert scenario.held == set()


def test_an_unchanged_full_set_is_a_plain_renewal() -> None:
    scenario = registered(bound=(activity("a"),))
    assert scenario.beat(full_bindings=True, bound=(activity("a"),)) == (LeaseRenewed(2, 0, 0, 0),)


def test_a_full_set_clears_lost_activities_that_it_does_not_contain() -> None:
    scenario = registered(bound=(activity("a"), activity("b"), activity("c"))).go_silent()
    scenario.beat()
    scenario.beat(full_bindings=True, bound=(activity("b"), activity("c")), unbound=(activity("c"),))
    assert scenario.lost == {("b", 1)}


# -- resync: the service asks for the full set


def test_a_gap_in_the_sequence_requests_a_resync_until_the_full_set_arrives() -> None:
    scenario = registered()
    resyncs = []
    for sequence in (2, 4, 5):
        scenario.beat(sequence=sequence)
        resyncs.append(scenario.known.resync)
    assert resyncs == [False, True, True], "the request stays until the full set is known"


def test_unbinding_an_unknown_activity_requests_a_resync() -> None:
    scenario = registered()
    change = bindings_changed(scenario.beat(unbound=(activity("unheard of"),)))
    assert change == BindingsChanged(bound=(), unbound=(), resync=True)
    assert scenario.known.resync


def test_a_resync_that_is_already_requested_is_not_written_again() -> None:
    scenario = registered()
    scenario.beat(unbound=(activity("x"),))
    assert scenario.beat(unbound=(activity("y"),)) == (LeaseRenewed(3, 0, 0, 0),)


@pytest.mark.parametrize("fields", [{"session_id": ""}, {"sequence": 0}])
def test_clients_without_session_or_sequence_request_no_resync_by_unbinding(fields: dict[str, Any]) -> None:
    """Such clients may repeat a heartbeat that was applied already, and the service cannot tell."""
    scenario = registered(**{"sequence": 1} | fields)
    again: dict[str, Any] = {"sequence": 2, "unbound": (activity("x"),)} | fields
    assert len(scenario.beat(**again)) == 1
    assert not scenario.known.resync


def test_a_client_without_sequence_never_has_a_gap() -> None:
    scenario = registered(sequence=0)
    scenario.beat(sequence=0)
    assert not scenario.known.resync


def test_a_full_set_ends_the_resync() -> None:
    scenario = registered()
    scenario.beat(sequence=9)
    change = bindings_changed(scenario.beat(full_bindings=True))
    assert change == BindingsChanged(bound=(), unbound=(), resync=False)
    assert not scenario.known.resync


def test_a_full_set_needs_no_resync_even_after_a_gap_in_the_sequence() -> None:
    scenario = registered()
    scenario.beat(sequence=9, full_bindings=True, bound=(activity("a"),))
    assert not scenario.known.resync
    scenario.beat(sequence=19, full_bindings=True, bound=(activity("a"),))
    assert not scenario.known.resync


@pytest.mark.parametrize(
    ("fields", "resync"),
    [
        ({"sequence": 1}, False),
        ({"sequence": 0}, False),
        ({"sequence": 5}, True),
        ({"sequence": 5, "full_bindings": True}, False),
    ],
)
def test_a_session_whose_first_heartbeat_is_missing_needs_a_resync(
    fields: dict[str, Any], *, resync: bool
) -> None:
    assert registered(**fields).known.resync is resync
    replaced = registered(session_id="old", sequence=7)
    replaced.beat(session_id="new", **fields)
    assert replaced.known.resync is resync


@pytest.mark.parametrize(("sequence", "resync"), [(4, False), (5, True)])
def test_a_resurrection_requests_a_resync_if_a_heartbeat_is_missing_before_it(
    sequence: int, *, resync: bool
) -> None:
    scenario = registered()
    scenario.beat(sequence=2)
    scenario.beat(sequence=3)
    scenario.go_silent()
    scenario.beat(sequence=sequence)
    assert scenario.known.resync is resync


def test_shutting_down_ends_the_resync() -> None:
    scenario = registered()
    scenario.beat(sequence=9)
    scenario.shut_down()
    assert not scenario.known.resync


# -- lost activities


def resurrected_with_lost(*names: str) -> WorkerScenario:
    """A resurrected worker that lost these activities when its lease expired."""
    scenario = registered(bound=tuple(activity(name) for name in names)).go_silent()
    scenario.beat()
    return scenario


def test_a_lost_activity_stays_listed_for_cancellation_until_it_is_unbound() -> None:
    scenario = resurrected_with_lost("a", "b")
    scenario.beat()
    assert scenario.lost == {("a", 1), ("b", 1)}
    scenario.beat(unbound=(activity("a"),))
    assert scenario.lost == {("b", 1)}
    assert not scenario.known.resync


def test_unbinding_a_lost_attempt_keeps_the_later_attempt_that_is_held() -> None:
    """The reschedule of a lost activity may hand it to the same worker again. If the later attempt were
    unbound here, nothing would reschedule it when this worker dies."""
    scenario = resurrected_with_lost("a")
    scenario.beat(bound=(activity("a", attempt=2),))
    scenario.beat(unbound=(activity("a", attempt=1),))
    assert (scenario.held, scenario.lost) == ({("a", 2)}, set())
    scenario.go_silent()
    assert scenario.rescheduled == [("a", 1, 1), ("a", 2, 2)]


def test_unbinding_an_earlier_attempt_keeps_the_cancellation_of_a_later_one() -> None:
    """A worker may report the end of attempt 1 when attempt 2 has already been taken from it. If this ended the
    cancellation, the worker would never learn that it has to stop attempt 2."""
    scenario = registered(bound=(activity("a", attempt=2),)).go_silent()
    scenario.beat()
    scenario.beat(unbound=(activity("a", attempt=1),))
    assert (scenario.lost, scenario.known.resync) == ({("a", 2)}, False)
    scenario.beat(unbound=(activity("a", attempt=2),))
    assert scenario.lost == set()


def test_one_heartbeat_can_unbind_a_lost_attempt_and_bind_the_next() -> None:
    scenario = resurrected_with_lost("a")
    scenario.beat(unbound=(activity("a", attempt=1),), bound=(activity("a", attempt=2),))
    assert (scenario.held, scenario.lost) == ({("a", 2)}, set())


def test_a_lost_activity_that_the_worker_declares_again_is_held_and_still_to_be_cancelled() -> None:
    """Its reschedule stands: continuing the work does not give the worker its lost attempt back."""
    scenario = registered(bound=(activity("a"),)).go_silent()
    scenario.beat(bound=(activity("a"),))
    assert (scenario.held, scenario.lost) == ({("a", 1)}, {("a", 1)})
    scenario.beat(unbound=(activity("a"),))
    assert (scenario.held, scenario.lost) == (set(), set())


# -- quota


QUOTA_OF_TWO = Policy(max_bindings_per_worker=2)


def test_a_worker_may_hold_as_many_activities_as_its_quota() -> None:
    scenario = registered(policy=QUOTA_OF_TWO, bound=(activity("a"),))
    scenario.beat(policy=QUOTA_OF_TWO, bound=(activity("b"),))
    assert len(scenario.held) == 2


@pytest.mark.parametrize("session_id", ["a", "b"])
def test_a_heartbeat_above_the_quota_is_refused_as_a_whole(session_id: str) -> None:
    scenario = registered(policy=QUOTA_OF_TWO, bound=(activity("a"), activity("b")))
    before = scenario.known
    bound = tuple(activity(name) for name in "abc")
    with pytest.raises(BindingQuotaExceeded) as refused:
        scenario.beat(sequence=2, session_id=session_id, policy=QUOTA_OF_TWO, bound=bound, successes=5)
    assert refused.value.fields == {"worker": "worker-1", "count": 3, "limit": 2}
    assert scenario.known == before


def test_a_first_heartbeat_above_the_quota_registers_no_worker() -> None:
    scenario = WorkerScenario()
    with pytest.raises(BindingQuotaExceeded):
        scenario.beat(policy=QUOTA_OF_TWO, bound=tuple(activity(name) for name in "abc"))
    assert scenario.worker is None


def test_the_quota_counts_the_bindings_after_the_heartbeat() -> None:
    scenario = registered(policy=QUOTA_OF_TWO, bound=(activity("a"), activity("b")))
    scenario.beat(policy=QUOTA_OF_TWO, unbound=(activity("a"),), bound=(activity("c"),))
    assert scenario.held == {("b", 1), ("c", 1)}
    scenario.beat(policy=QUOTA_OF_TWO, bound=(activity("d"),), unbound=(activity("d"),))
    scenario.beat(policy=QUOTA_OF_TWO, bound=(activity("b", attempt=2),))
    assert scenario.held == {("b", 2), ("c", 1)}
    scenario.beat(policy=QUOTA_OF_TWO, full_bindings=True, bound=(activity("x"), activity("y")))
    assert scenario.held == {("x", 1), ("y", 1)}


def test_a_worker_above_a_lowered_quota_may_unbind_but_not_grow() -> None:
    scenario = registered(bound=tuple(activity(name) for name in "abcd"))
    scenario.beat(policy=QUOTA_OF_TWO)
    scenario.beat(policy=QUOTA_OF_TWO, unbound=(activity("a"),))
    assert len(scenario.held) == 3
    scenario.beat(policy=QUOTA_OF_TWO, unbound=(activity("b"),), bound=(activity("e"),))
    assert len(scenario.held) == 3
    with pytest.raises(BindingQuotaExceeded):
        scenario.beat(policy=QUOTA_OF_TWO, bound=(activity("f"),))


def test_a_lost_activity_that_is_held_again_counts_once() -> None:
    scenario = resurrected_with_lost("a")
    scenario.beat(policy=QUOTA_OF_TWO, bound=(activity("a", attempt=2), activity("b")))
    scenario.beat(policy=QUOTA_OF_TWO, unbound=(activity("a", attempt=1),))
    assert scenario.held == {("a", 2), ("b", 1)}


def test_a_later_attempt_still_counts_when_the_lost_one_is_unbound() -> None:
    scenario = resurrected_with_lost("a")
    scenario.beat(policy=QUOTA_OF_TWO, bound=(activity("a", attempt=2), activity("b")))
    with pytest.raises(BindingQuotaExceeded):
        scenario.beat(policy=QUOTA_OF_TWO, unbound=(activity("a", attempt=1),), bound=(activity("c"),))
