"""Bindings that the service made, by a poll or a claim, before the worker could know of them."""

import pytest

from liveness.domain.errors import BindingQuotaExceeded
from liveness.domain.events import ActivityHanded, BindingsChanged, BindingsEnded, LeaseRenewed
from liveness.domain.policy import Policy
from liveness.domain.worker import NO_STANDING
from tests.domain.story import Story, activity, registered


def handed(*names: str, **fields: object) -> Story:
    story = registered(**fields)
    for name in names:
        story.hand(activity(name))
    return story


def blame(story: Story) -> list[tuple[str, int, bool]]:
    """(activity, attempt, whether its worker died with it) of each reschedule so far."""
    return [(task.activity.activity_id, task.activity.attempt, task.died) for task in story.tasks]


# -- coming


def test_what_a_worker_is_handed_is_bound_before_it_hears_of_it() -> None:
    story = registered()
    assert story.hand(activity("x", 3)) == (ActivityHanded(activity=activity("x", 3)),)
    assert (story.held, story.handed) == ({("x", 3)}, {"x": False})


def test_what_it_bound_by_itself_is_not_handed() -> None:
    story = handed("x", bound=(activity("own"),))
    assert story.held == {("x", 1), ("own", 1)}
    assert story.handed == {"x": False}


def test_the_same_activity_may_be_handed_again_with_its_next_attempt() -> None:
    story = handed("x")
    story.beat(bound=(activity("x"),))
    story.hand(activity("x", 2))
    assert (story.held, story.handed) == ({("x", 2)}, {"x": False})


def test_a_binding_of_its_own_becomes_a_handed_one_when_it_claims_it() -> None:
    story = handed("x", bound=(activity("x"),))
    assert (story.held, story.handed) == ({("x", 1)}, {"x": False})


# -- confirming


def test_a_heartbeat_that_names_it_confirms_it() -> None:
    story = handed("x", "y")
    assert story.beat(bound=(activity("x"),)) == (
        BindingsChanged(bound=(), unbound=(), resync=False, confirmed=(activity("x").id,)),
        LeaseRenewed(2, 0, 0, 0),
    )
    assert story.handed == {"x": True, "y": False}
    assert story.held == {("x", 1), ("y", 1)}


def test_a_confirmed_one_is_not_confirmed_again() -> None:
    story = handed("x")
    story.beat(bound=(activity("x"),))
    assert story.beat(bound=(activity("x"),)) == (LeaseRenewed(3, 0, 0, 0),)
    assert story.handed == {"x": True}


def test_a_heartbeat_that_names_others_confirms_nothing() -> None:
    story = handed("x")
    story.beat(bound=(activity("own"),))
    story.beat()
    assert story.handed == {"x": False}


def test_another_attempt_than_it_was_handed_is_ignored() -> None:
    """Which attempt it is, is decided here."""
    story = handed("x")
    assert story.beat(bound=(activity("x", 2),)) == (LeaseRenewed(2, 0, 0, 0),)
    assert story.beat(bound=(activity("x", 2),), unbound=(activity("x", 2),)) == (LeaseRenewed(3, 0, 0, 0),)
    assert (story.held, story.handed) == ({("x", 1)}, {"x": False})


def test_the_whole_set_does_not_drop_what_it_may_not_have_heard_of_yet() -> None:
    story = handed("x", "y", bound=(activity("own"),))
    story.beat(bound=(activity("y"),))
    story.beat(full_bindings=True)
    assert (story.held, story.handed) == ({("x", 1)}, {"x": False})
    assert blame(story) == [("y", 1, False)], "y it knew, and let go of"


def test_the_whole_set_confirms_what_is_in_it() -> None:
    story = handed("x")
    story.beat(full_bindings=True, bound=(activity("x"),))
    assert (story.held, story.handed) == ({("x", 1)}, {"x": True})


def test_the_whole_set_with_another_attempt_does_not_name_it() -> None:
    story = handed("x")
    story.beat(bound=(activity("x"),))
    story.beat(full_bindings=True, bound=(activity("x", 2),))
    assert story.held == set()
    assert blame(story) == [("x", 1, False)]


# -- letting go


def test_unbinding_a_handed_one_makes_it_run_elsewhere_without_blame() -> None:
    story = handed("x", bound=(activity("own"),))
    story.beat(unbound=(activity("x"), activity("own")))
    assert (story.held, story.handed) == (set(), {})
    assert blame(story) == [("x", 1, False)], "what it bound by itself is its own engine's business"


def test_confirming_and_letting_go_in_one_heartbeat_is_letting_go() -> None:
    story = handed("x")
    story.beat(bound=(activity("x"),), unbound=(activity("x"),))
    assert (story.held, story.handed) == (set(), {})
    assert blame(story) == [("x", 1, False)]


def test_unbinding_another_attempt_lets_go_of_nothing() -> None:
    story = handed("x")
    story.beat(unbound=(activity("x", 2),))
    assert (story.held, blame(story)) == ({("x", 1)}, [])


def test_unbinding_the_attempt_it_lost_keeps_the_one_it_was_handed_since() -> None:
    """Also whether it was confirmed."""
    story = registered(bound=(activity("x", 1),)).go_silent()
    story.beat()
    story.hand(activity("x", 2))
    story.beat(unbound=(activity("x", 1),))
    assert (story.held, story.lost, story.handed) == ({("x", 2)}, set(), {"x": False})
    assert blame(story) == [("x", 1, True)]


def test_the_lost_attempt_that_is_still_in_the_whole_set_is_still_to_be_cancelled() -> None:
    story = registered(bound=(activity("x", 1),)).go_silent()
    story.beat()
    story.hand(activity("x", 2))
    story.beat(full_bindings=True, bound=(activity("x", 1),))
    assert (story.held, story.lost) == ({("x", 2)}, {("x", 1)})


# -- being ended by the service


def test_an_attempt_that_its_worker_ended_is_no_longer_bound() -> None:
    story = handed("x", "y")
    assert story.end_binding(activity("x")) == (BindingsEnded(ids=(activity("x").id,), taken=False),)
    assert (story.held, story.lost, story.handed) == ({("y", 1)}, set(), {"y": False})
    assert story.tasks == []


def test_an_attempt_that_was_taken_back_is_to_be_cancelled() -> None:
    story = handed("x")
    story.end_binding(activity("x"), taken=True)
    assert (story.held, story.lost, story.handed) == (set(), {("x", 1)}, {})
    assert story.tasks == [], "who takes it knows what becomes of it"
    story.beat(unbound=(activity("x"),))
    assert story.lost == set()
    assert not story.known.resync


def test_ending_another_attempt_or_what_is_not_bound_changes_nothing() -> None:
    story = handed("x")
    assert story.end_binding(activity("x", 2)) == ()
    assert story.end_binding(activity("unheard of")) == ()
    story.end_binding(activity("x"))
    assert story.end_binding(activity("x")) == ()


def test_a_worker_that_left_has_nothing_to_end() -> None:
    story = handed("x").go_silent()
    assert story.end_binding(activity("x"), taken=True) == ()


def test_the_last_one_that_ends_leaves_no_trace() -> None:
    story = handed("x")
    story.end_binding(activity("x"))
    assert story.known.standing is NO_STANDING


# -- being lost


@pytest.mark.parametrize("confirmed", [False, True])
def test_a_silent_worker_died_with_what_it_was_handed(*, confirmed: bool) -> None:
    story = handed("x")
    if confirmed:
        story.beat(bound=(activity("x"),))
    story.go_silent()
    assert blame(story) == [("x", 1, True)]
    assert story.handed == {}


@pytest.mark.parametrize("forced", [False, True])
def test_a_worker_that_leaves_in_order_is_not_to_blame(*, forced: bool) -> None:
    story = handed("x", bound=(activity("own"),))
    if forced:
        story.force_out()
    else:
        story.shut_down()
    assert sorted(blame(story)) == [("own", 1, False), ("x", 1, False)]


def test_a_new_session_keeps_what_it_names_and_is_known_to_have_heard_of_it() -> None:
    story = handed("named", "not named", "also named", bound=(activity("own"),))
    story.beat(bound=(activity("also named"),))
    story.beat(session_id="b", sequence=1, bound=(activity("named"), activity("own"), activity("also named")))
    assert story.held == {("named", 1), ("own", 1), ("also named", 1)}
    assert story.handed == {"named": True, "also named": True}
    assert blame(story) == [("not named", 1, True)], "its process is gone"


def test_a_new_session_that_names_another_attempt_loses_the_one_that_was_handed() -> None:
    """Nobody else would run it: the activity says that this worker holds attempt 1."""
    story = handed("x")
    story.beat(session_id="b", sequence=1, bound=(activity("x", 2),))
    assert blame(story) == [("x", 1, True)]
    assert (story.held, story.handed) == ({("x", 2)}, {}), "what it says it holds is its own business"


def test_a_resurrected_worker_was_handed_nothing() -> None:
    story = handed("x").go_silent()
    story.beat(bound=(activity("x"),))
    assert (story.held, story.handed) == ({("x", 1)}, {})


# -- the quota


def test_handed_ones_count_in_the_quota_of_a_heartbeat() -> None:
    two = Policy(max_bindings_per_worker=2)
    story = handed("x", "y")
    story.beat(policy=two, bound=(activity("x"), activity("y")))
    assert story.held == {("x", 1), ("y", 1)}
    with pytest.raises(BindingQuotaExceeded):
        story.beat(policy=two, bound=(activity("own"),))
