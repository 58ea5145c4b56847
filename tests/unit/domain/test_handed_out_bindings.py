"""Bindings that the service made, by a poll or a claim, before the worker could know of them."""

import pytest

from liveness.domain.errors import BindingQuotaExceeded
from liveness.domain.events import ActivityHanded, BindingsChanged, BindingsEnded, LeaseRenewed
from liveness.domain.policy import Policy
from liveness.domain.worker import NO_STANDING
from tests.unit.domain.worker_scenario import WorkerScenario, activity, registered


def handed(*names: str, **fields: object) -> WorkerScenario:
    scenario = registered(**fields)
    for name in names:
        scenario.bind(activity(name))
    return scenario


def reschedules_of(scenario: WorkerScenario) -> list[tuple[str, int, bool]]:
    """(activity, attempt, whether its worker died with it) of each reschedule so far."""
    return [(task.activity.activity_id, task.activity.attempt, task.died) for task in scenario.tasks]


# -- coming


def test_what_a_worker_is_handed_is_bound_before_it_hears_of_it() -> None:
    scenario = registered()
    assert scenario.bind(activity("x", 3)) == (ActivityHanded(activity=activity("x", 3)),)
    assert (scenario.held, scenario.handed) == ({("x", 3)}, {"x": False})


def test_what_it_bound_by_itself_is_not_handed() -> None:
    scenario = handed("x", bound=(activity("own"),))
    assert scenario.held == {("x", 1), ("own", 1)}
    assert scenario.handed == {"x": False}


def test_the_same_activity_may_be_handed_again_with_its_next_attempt() -> None:
    scenario = handed("x")
    scenario.beat(bound=(activity("x"),))
    scenario.bind(activity("x", 2))
    assert (scenario.held, scenario.handed) == ({("x", 2)}, {"x": False})


def test_a_binding_of_its_own_becomes_a_handed_one_when_it_claims_it() -> None:
    scenario = handed("x", bound=(activity("x"),))
    assert (scenario.held, scenario.handed) == ({("x", 1)}, {"x": False})


# -- confirming


def test_a_heartbeat_that_names_it_confirms_it() -> None:
    scenario = handed("x", "y")
    assert scenario.beat(bound=(activity("x"),)) == (
        BindingsChanged(bound=(), unbound=(), resync=False, confirmed=(activity("x").id,)),
        LeaseRenewed(2, 0, 0, 0),
    )
    assert scenario.handed == {"x": True, "y": False}
    assert scenario.held == {("x", 1), ("y", 1)}


def test_a_confirmed_one_is_not_confirmed_again() -> None:
    scenario = handed("x")
    scenario.beat(bound=(activity("x"),))
    assert scenario.beat(bound=(activity("x"),)) == (LeaseRenewed(3, 0, 0, 0),)
    assert scenario.handed == {"x": True}


def test_a_heartbeat_that_names_others_confirms_nothing() -> None:
    scenario = handed("x")
    scenario.beat(bound=(activity("own"),))
    scenario.beat()
    assert scenario.handed == {"x": False}


def test_another_attempt_than_it_was_handed_is_ignored() -> None:
    """Which attempt it is, is decided here."""
    scenario = handed("x")
    assert scenario.beat(bound=(activity("x", 2),)) == (LeaseRenewed(2, 0, 0, 0),)
    assert scenario.beat(bound=(activity("x", 2),), unbound=(activity("x", 2),)) == (
        LeaseRenewed(3, 0, 0, 0),
    )
    assert (scenario.held, scenario.handed) == ({("x", 1)}, {"x": False})


def test_the_whole_set_does_not_drop_what_it_may_not_have_heard_of_yet() -> None:
    scenario = handed("x", "y", bound=(activity("own"),))
    scenario.beat(bound=(activity("y"),))
    scenario.beat(full_bindings=True)
    assert (scenario.held, scenario.handed) == ({("x", 1)}, {"x": False})
    assert reschedules_of(scenario) == [("y", 1, False)], "y it knew, and let go of"


def test_the_whole_set_confirms_what_is_in_it() -> None:
    scenario = handed("x")
    scenario.beat(full_bindings=True, bound=(activity("x"),))
    assert (scenario.held, scenario.handed) == ({("x", 1)}, {"x": True})


def test_the_whole_set_with_another_attempt_does_not_name_it() -> None:
    scenario = handed("x")
    scenario.beat(bound=(activity("x"),))
    scenario.beat(full_bindings=True, bound=(activity("x", 2),))
    assert scenario.held == set()
    assert reschedules_of(scenario) == [("x", 1, False)]


# -- letting go


def test_unbinding_a_handed_one_makes_it_run_elsewhere_without_blame() -> None:
    scenario = handed("x", bound=(activity("own"),))
    scenario.beat(unbound=(activity("x"), activity("own")))
    assert (scenario.held, scenario.handed) == (set(), {})
    assert reschedules_of(scenario) == [("x", 1, False)], (
        "what it bound by itself is its own engine's business"
    )


def test_confirming_and_letting_go_in_one_heartbeat_is_letting_go() -> None:
    scenario = handed("x")
    scenario.beat(bound=(activity("x"),), unbound=(activity("x"),))
    assert (scenario.held, scenario.handed) == (set(), {})
    assert reschedules_of(scenario) == [("x", 1, False)]


def test_unbinding_another_attempt_lets_go_of_nothing() -> None:
    scenario = handed("x")
    scenario.beat(unbound=(activity("x", 2),))
    assert (scenario.held, reschedules_of(scenario)) == ({("x", 1)}, [])


def test_unbinding_the_attempt_it_lost_keeps_the_one_it_was_handed_since() -> None:
    """Also whether it was confirmed."""
    scenario = registered(bound=(activity("x", 1),)).go_silent()
    scenario.beat()
    scenario.bind(activity("x", 2))
    scenario.beat(unbound=(activity("x", 1),))
    assert (scenario.held, scenario.lost, scenario.handed) == ({("x", 2)}, set(), {"x": False})
    assert reschedules_of(scenario) == [("x", 1, True)]


def test_the_lost_attempt_that_is_still_in_the_whole_set_is_still_to_be_cancelled() -> None:
    scenario = registered(bound=(activity("x", 1),)).go_silent()
    scenario.beat()
    scenario.bind(activity("x", 2))
    scenario.beat(full_bindings=True, bound=(activity("x", 1),))
    assert (scenario.held, scenario.lost) == ({("x", 2)}, {("x", 1)})


# -- being ended by the service


def test_an_attempt_that_its_worker_ended_is_no_longer_bound() -> None:
    scenario = handed("x", "y")
    assert scenario.end_binding(activity("x")) == (BindingsEnded(ids=(activity("x").id,), taken=False),)
    assert (scenario.held, scenario.lost, scenario.handed) == ({("y", 1)}, set(), {"y": False})
    assert scenario.tasks == []


def test_an_attempt_that_was_taken_back_is_to_be_cancelled() -> None:
    scenario = handed("x")
    scenario.end_binding(activity("x"), taken=True)
    assert (scenario.held, scenario.lost, scenario.handed) == (set(), {("x", 1)}, {})
    assert scenario.tasks == [], "who takes it knows what becomes of it"
    scenario.beat(unbound=(activity("x"),))
    assert scenario.lost == set()
    assert not scenario.known.resync


def test_ending_another_attempt_or_what_is_not_bound_changes_nothing() -> None:
    scenario = handed("x")
    assert scenario.end_binding(activity("x", 2)) == ()
    assert scenario.end_binding(activity("unheard of")) == ()
    scenario.end_binding(activity("x"))
    assert scenario.end_binding(activity("x")) == ()


def test_a_worker_that_left_has_nothing_to_end() -> None:
    scenario = handed("x").go_silent()
    assert scenario.end_binding(activity("x"), taken=True) == ()


def test_the_last_one_that_ends_leaves_no_trace() -> None:
    scenario = handed("x")
    scenario.end_binding(activity("x"))
    assert scenario.known.standing is NO_STANDING


# -- being lost


@pytest.mark.parametrize("confirmed", [False, True])
def test_a_silent_worker_died_with_what_it_was_handed(*, confirmed: bool) -> None:
    scenario = handed("x")
    if confirmed:
        scenario.beat(bound=(activity("x"),))
    scenario.go_silent()
    assert reschedules_of(scenario) == [("x", 1, True)]
    assert scenario.handed == {}


@pytest.mark.parametrize("forced", [False, True])
def test_a_worker_that_leaves_in_order_is_not_to_blame(*, forced: bool) -> None:
    scenario = handed("x", bound=(activity("own"),))
    if forced:
        scenario.force_out()
    else:
        scenario.shut_down()
    assert sorted(reschedules_of(scenario)) == [("own", 1, False), ("x", 1, False)]


def test_a_new_session_keeps_what_it_names_and_is_known_to_have_heard_of_it() -> None:
    scenario = handed("named", "not named", "also named", bound=(activity("own"),))
    scenario.beat(bound=(activity("also named"),))
    scenario.beat(
        session_id="b", sequence=1, bound=(activity("named"), activity("own"), activity("also named"))
    )
    assert scenario.held == {("named", 1), ("own", 1), ("also named", 1)}
    assert scenario.handed == {"named": True, "also named": True}
    assert reschedules_of(scenario) == [("not named", 1, True)], "its process is gone"


def test_a_new_session_that_names_another_attempt_loses_the_one_that_was_handed() -> None:
    """Nobody else would run it: the activity says that this worker holds attempt 1."""
    scenario = handed("x")
    scenario.beat(session_id="b", sequence=1, bound=(activity("x", 2),))
    assert reschedules_of(scenario) == [("x", 1, True)]
    assert (scenario.held, scenario.handed) == ({("x", 2)}, {}), "what it says it holds is its own business"


def test_a_resurrected_worker_was_handed_nothing() -> None:
    scenario = handed("x").go_silent()
    scenario.beat(bound=(activity("x"),))
    assert (scenario.held, scenario.handed) == ({("x", 1)}, {})


# -- the quota


def test_handed_ones_count_in_the_quota_of_a_heartbeat() -> None:
    two = Policy(max_bindings_per_worker=2)
    scenario = handed("x", "y")
    scenario.beat(policy=two, bound=(activity("x"), activity("y")))
    assert scenario.held == {("x", 1), ("y", 1)}
    with pytest.raises(BindingQuotaExceeded):
        scenario.beat(policy=two, bound=(activity("own"),))
