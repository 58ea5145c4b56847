"""Bindings that the service creates on a poll or a claim, before the worker knows of them."""

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
    """(activity, attempt, whether the worker died) of each reschedule so far."""
    return [(task.activity.activity_id, task.activity.attempt, task.died) for task in scenario.tasks]


# -- handing out


def test_a_handed_out_activity_is_bound_before_the_worker_confirms_it() -> None:
    scenario = registered()
    assert scenario.bind(activity("x", 3)) == (ActivityHanded(activity=activity("x", 3)),)
    assert (scenario.held, scenario.handed) == ({("x", 3)}, {"x": False})


def test_an_activity_bound_by_heartbeat_is_not_marked_as_handed_out() -> None:
    scenario = handed("x", bound=(activity("own"),))
    assert scenario.held == {("x", 1), ("own", 1)}
    assert scenario.handed == {"x": False}


def test_the_next_attempt_of_a_confirmed_activity_can_be_handed_out() -> None:
    scenario = handed("x")
    scenario.beat(bound=(activity("x"),))
    scenario.bind(activity("x", 2))
    assert (scenario.held, scenario.handed) == ({("x", 2)}, {"x": False})


def test_claiming_an_activity_bound_by_heartbeat_marks_it_as_handed_out() -> None:
    scenario = handed("x", bound=(activity("x"),))
    assert (scenario.held, scenario.handed) == ({("x", 1)}, {"x": False})


# -- confirming


def test_a_heartbeat_confirms_the_handed_out_activities_it_names() -> None:
    scenario = handed("x", "y")
    assert scenario.beat(bound=(activity("x"),)) == (
        BindingsChanged(bound=(), unbound=(), resync=False, confirmed=(activity("x").id,)),
        LeaseRenewed(2, 0, 0, 0),
    )
    assert scenario.handed == {"x": True, "y": False}
    assert scenario.held == {("x", 1), ("y", 1)}


def test_a_confirmed_activity_is_not_confirmed_again() -> None:
    scenario = handed("x")
    scenario.beat(bound=(activity("x"),))
    assert scenario.beat(bound=(activity("x"),)) == (LeaseRenewed(3, 0, 0, 0),)
    assert scenario.handed == {"x": True}


def test_a_heartbeat_that_names_others_confirms_nothing() -> None:
    scenario = handed("x")
    scenario.beat(bound=(activity("own"),))
    scenario.beat()
    assert scenario.handed == {"x": False}


def test_a_heartbeat_that_names_another_attempt_of_a_handed_out_activity_is_ignored() -> None:
    """The service numbers the attempts of handed-out activities, not the worker."""
    scenario = handed("x")
    assert scenario.beat(bound=(activity("x", 2),)) == (LeaseRenewed(2, 0, 0, 0),)
    assert scenario.beat(bound=(activity("x", 2),), unbound=(activity("x", 2),)) == (
        LeaseRenewed(3, 0, 0, 0),
    )
    assert (scenario.held, scenario.handed) == ({("x", 1)}, {"x": False})


def test_a_full_set_does_not_drop_unconfirmed_activities() -> None:
    scenario = handed("x", "y", bound=(activity("own"),))
    scenario.beat(bound=(activity("y"),))
    scenario.beat(full_bindings=True)
    assert (scenario.held, scenario.handed) == ({("x", 1)}, {"x": False})
    assert reschedules_of(scenario) == [("y", 1, False)], "the worker had confirmed y and then dropped it"


def test_a_full_set_confirms_the_activities_it_contains() -> None:
    scenario = handed("x")
    scenario.beat(full_bindings=True, bound=(activity("x"),))
    assert (scenario.held, scenario.handed) == ({("x", 1)}, {"x": True})


def test_a_full_set_with_another_attempt_drops_the_confirmed_one() -> None:
    scenario = handed("x")
    scenario.beat(bound=(activity("x"),))
    scenario.beat(full_bindings=True, bound=(activity("x", 2),))
    assert scenario.held == set()
    assert reschedules_of(scenario) == [("x", 1, False)]


# -- unbinding


def test_unbinding_a_handed_out_activity_reschedules_it_without_counting_a_death() -> None:
    scenario = handed("x", bound=(activity("own"),))
    scenario.beat(unbound=(activity("x"), activity("own")))
    assert (scenario.held, scenario.handed) == (set(), {})
    assert reschedules_of(scenario) == [("x", 1, False)], (
        "an activity bound by heartbeat belongs to its own engine"
    )


def test_binding_and_unbinding_a_handed_out_activity_in_one_heartbeat_unbinds_it() -> None:
    scenario = handed("x")
    scenario.beat(bound=(activity("x"),), unbound=(activity("x"),))
    assert (scenario.held, scenario.handed) == (set(), {})
    assert reschedules_of(scenario) == [("x", 1, False)]


def test_unbinding_another_attempt_of_a_handed_out_activity_changes_nothing() -> None:
    scenario = handed("x")
    scenario.beat(unbound=(activity("x", 2),))
    assert (scenario.held, reschedules_of(scenario)) == ({("x", 1)}, [])


def test_unbinding_a_lost_attempt_keeps_the_attempt_handed_out_since() -> None:
    """The later attempt also stays unconfirmed."""
    scenario = registered(bound=(activity("x", 1),)).go_silent()
    scenario.beat()
    scenario.bind(activity("x", 2))
    scenario.beat(unbound=(activity("x", 1),))
    assert (scenario.held, scenario.lost, scenario.handed) == ({("x", 2)}, set(), {"x": False})
    assert reschedules_of(scenario) == [("x", 1, True)]


def test_a_lost_attempt_in_the_full_set_is_still_to_be_cancelled() -> None:
    scenario = registered(bound=(activity("x", 1),)).go_silent()
    scenario.beat()
    scenario.bind(activity("x", 2))
    scenario.beat(full_bindings=True, bound=(activity("x", 1),))
    assert (scenario.held, scenario.lost) == ({("x", 2)}, {("x", 1)})


# -- bindings that the service ends


def test_an_attempt_that_the_worker_ended_is_no_longer_bound() -> None:
    scenario = handed("x", "y")
    assert scenario.end_binding(activity("x")) == (BindingsEnded(ids=(activity("x").id,), taken=False),)
    assert (scenario.held, scenario.lost, scenario.handed) == ({("y", 1)}, set(), {"y": False})
    assert scenario.tasks == []


def test_an_attempt_that_was_taken_back_is_to_be_cancelled() -> None:
    scenario = handed("x")
    scenario.end_binding(activity("x"), taken=True)
    assert (scenario.held, scenario.lost, scenario.handed) == (set(), {("x", 1)}, {})
    assert scenario.tasks == [], "the caller that takes it back decides what happens next"
    scenario.beat(unbound=(activity("x"),))
    assert scenario.lost == set()
    assert not scenario.known.resync


def test_ending_another_attempt_or_an_unbound_activity_changes_nothing() -> None:
    scenario = handed("x")
    assert scenario.end_binding(activity("x", 2)) == ()
    assert scenario.end_binding(activity("unheard of")) == ()
    scenario.end_binding(activity("x"))
    assert scenario.end_binding(activity("x")) == ()


def test_an_inactive_worker_has_no_binding_to_end() -> None:
    scenario = handed("x").go_silent()
    assert scenario.end_binding(activity("x"), taken=True) == ()


def test_a_worker_without_handed_out_activities_shares_the_empty_standing() -> None:
    scenario = handed("x")
    scenario.end_binding(activity("x"))
    assert scenario.known.standing is NO_STANDING


# -- losing handed-out activities


@pytest.mark.parametrize("confirmed", [False, True])
def test_expiry_reschedules_handed_out_activities_as_deaths(*, confirmed: bool) -> None:
    scenario = handed("x")
    if confirmed:
        scenario.beat(bound=(activity("x"),))
    scenario.go_silent()
    assert reschedules_of(scenario) == [("x", 1, True)]
    assert scenario.handed == {}


@pytest.mark.parametrize("forced", [False, True])
def test_shutdown_and_force_reschedule_without_counting_deaths(*, forced: bool) -> None:
    scenario = handed("x", bound=(activity("own"),))
    if forced:
        scenario.force_out()
    else:
        scenario.shut_down()
    assert sorted(reschedules_of(scenario)) == [("own", 1, False), ("x", 1, False)]


def test_a_new_session_keeps_and_confirms_the_activities_it_names() -> None:
    scenario = handed("named", "not named", "also named", bound=(activity("own"),))
    scenario.beat(bound=(activity("also named"),))
    scenario.beat(
        session_id="b", sequence=1, bound=(activity("named"), activity("own"), activity("also named"))
    )
    assert scenario.held == {("named", 1), ("own", 1), ("also named", 1)}
    assert scenario.handed == {"named": True, "also named": True}
    assert reschedules_of(scenario) == [("not named", 1, True)], "the old process is gone"


def test_a_new_session_that_names_another_attempt_loses_the_handed_out_one() -> None:
    """No other worker would run it: the activity records that this worker holds attempt 1."""
    scenario = handed("x")
    scenario.beat(session_id="b", sequence=1, bound=(activity("x", 2),))
    assert reschedules_of(scenario) == [("x", 1, True)]
    assert (scenario.held, scenario.handed) == ({("x", 2)}, {}), (
        "the service keeps the binding that the session declares"
    )


def test_a_resurrected_worker_has_no_handed_out_activities() -> None:
    scenario = handed("x").go_silent()
    scenario.beat(bound=(activity("x"),))
    assert (scenario.held, scenario.handed) == ({("x", 1)}, {})


# -- the quota


def test_handed_out_activities_count_towards_the_binding_quota() -> None:
    two = Policy(max_bindings_per_worker=2)
    scenario = handed("x", "y")
    scenario.beat(policy=two, bound=(activity("x"), activity("y")))
    assert scenario.held == {("x", 1), ("y", 1)}
    with pytest.raises(BindingQuotaExceeded):
        scenario.beat(policy=two, bound=(activity("own"),))
