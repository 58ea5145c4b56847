"""The death certificate as a value, and verdicts that prove false."""

from __future__ import annotations

import pytest

from liveness.domain.death_certificate import (
    HEARTBEATS_MAX,
    STALLS_MAX,
    ConcurrentDeaths,
    DeathCertificate,
    DeathEvidence,
    Stall,
    issue_certificate,
    reconstruct_certificate,
)
from liveness.domain.decider import disconnect, expire_lease
from liveness.domain.events import WorkerDeactivated
from liveness.domain.fold import evolve
from liveness.domain.verdicts import NO_VERDICTS, VerdictCounts, count_verdict, refutes_death
from liveness.domain.worker import NO_PROFILE, InactiveReason, Profile, Worker
from tests.unit.domain.worker_scenario import POLICY, WorkerScenario, activity, registered

PROFILE = Profile(host_name="db-3", build_id="b7", task_queue="mail")
KNOWN = DeathEvidence(
    heartbeats=(1_000, 1_500),
    stalls=(Stall(1_600, 700), Stall(2_400)),
    company=ConcurrentDeaths(same_host=41, same_build=2, same_namespace=60),
)


def silent() -> Worker:
    """Heard twice, and its lease is over at 30.5 s."""
    scenario = registered(profile=PROFILE, bound=(activity("x"), activity("y")))
    scenario.wait(500).beat()
    return scenario.known


def death_of(worker: Worker, known: DeathEvidence = KNOWN) -> WorkerDeactivated:
    [event] = expire_lease(worker, POLICY, 30_500, known)
    return event


def test_a_certificate_says_what_is_known_of_the_worker_and_what_was_observed() -> None:
    assert death_of(silent()).certificate == DeathCertificate(
        epoch=1,
        session_id="a",
        silence_ms=30_000,
        granted_ms=30_000,
        activities=2,
        heartbeats=KNOWN.heartbeats,
        stalls=KNOWN.stalls,
        company=KNOWN.company,
        host_name="db-3",
        build_id="b7",
        task_queue="mail",
    )


def test_who_dies_of_a_broken_stream_gets_one_too() -> None:
    scenario = registered(profile=PROFILE)
    scenario.attach(5_000)
    [event] = disconnect(scenario.known, POLICY, 7_000, 2_000, KNOWN)
    assert event.certificate is not None
    assert (event.certificate.silence_ms, event.certificate.company) == (7_000, KNOWN.company)


@pytest.mark.parametrize("leave", ["shut_down", "force_out"])
def test_who_leaves_by_decision_gets_none(leave: str) -> None:
    [event] = getattr(registered(), leave)()
    assert event.certificate is None


def test_who_is_drained_gets_none() -> None:
    scenario = registered()
    scenario.drain(deadline_ms=1_000)
    [event] = scenario.wait(1_000).end_drain()
    assert isinstance(event, WorkerDeactivated)
    assert event.certificate is None


def test_state_never_depends_on_a_certificate() -> None:
    worker = silent()
    known, unknown = death_of(worker), death_of(worker, DeathEvidence())
    assert known != unknown
    assert evolve(worker, known, 9) == evolve(worker, unknown, 9)


def test_of_many_heartbeats_and_stalls_the_last_are_kept() -> None:
    heard = tuple(range(100))
    stalls = tuple(Stall(n, n) for n in range(100))
    found = issue_certificate(silent(), 30_500, DeathEvidence(heard, stalls))
    assert found.heartbeats == heard[-HEARTBEATS_MAX:]
    assert found.stalls == stalls[-STALLS_MAX:]


def test_counts_of_which_some_may_be_missing_are_at_least_the_larger() -> None:
    assert ConcurrentDeaths(1, 5, 6).max_with(ConcurrentDeaths(2, 0, 9)) == ConcurrentDeaths(2, 5, 9)


# -- events from before there were certificates


def afterwards(detail: str, worker: Worker | None, profile: Profile = NO_PROFILE) -> DeathCertificate:
    return reconstruct_certificate(
        detail, 30_500, worker, epoch=3, session_id="a", granted_ms=20_000, profile=profile
    )


def test_of_an_old_death_the_detail_tells_the_silence() -> None:
    found = afterwards("no heartbeat for 31000 ms of a 30000 ms lease", None, PROFILE)
    assert (found.silence_ms, found.granted_ms, found.epoch) == (31_000, 30_000, 3)
    assert (found.host_name, found.build_id, found.task_queue) == ("db-3", "b7", "mail")
    assert (found.activities, found.heartbeats) == (None, ())


def test_of_an_old_death_without_a_telling_detail_the_silence_is_not_known() -> None:
    found = afterwards("its stream broke", None)
    assert (found.silence_ms, found.granted_ms) == (None, 20_000)


def test_of_an_old_death_that_is_its_workers_last_the_worker_tells_more() -> None:
    worker = silent()
    found = afterwards("its stream broke", evolve(worker, death_of(worker), 9))
    assert (found.silence_ms, found.granted_ms, found.host_name) == (30_000, 30_000, "db-3")


# -- verdicts


def counted(scenario: WorkerScenario) -> VerdictCounts:
    """Over the whole log, as a projection of it."""
    total = NO_VERDICTS
    for before, event in zip(scenario.states, scenario.log, strict=False):
        total += count_verdict(before, event)
    return total


def dead() -> WorkerScenario:
    scenario = registered()
    scenario.go_silent()
    return scenario


def test_a_death_stands_until_somebody_comes_back() -> None:
    assert counted(dead()) == VerdictCounts(deaths=1, refuted=0)


def test_the_same_session_coming_back_refutes_a_death() -> None:
    scenario = dead()
    scenario.beat()
    assert counted(scenario) == VerdictCounts(deaths=1, refuted=1)


def test_a_new_session_refutes_nothing() -> None:
    scenario = dead()
    scenario.beat(session_id="b", sequence=1)
    assert counted(scenario) == VerdictCounts(deaths=1, refuted=0)


def test_who_has_no_session_refutes_nothing() -> None:
    scenario = WorkerScenario()
    scenario.beat(session_id="", sequence=0)
    scenario.go_silent()
    scenario.beat(session_id="", sequence=0)
    assert counted(scenario) == VerdictCounts(deaths=1, refuted=0)


@pytest.mark.parametrize("leave", ["shut_down", "force_out"])
def test_who_left_by_decision_was_not_declared_dead_and_refutes_nothing(leave: str) -> None:
    scenario = registered()
    getattr(scenario, leave)()
    scenario.beat()
    assert counted(scenario) == NO_VERDICTS


def test_a_restart_while_alive_is_no_death() -> None:
    scenario = registered()
    scenario.beat(session_id="b", sequence=1)
    assert counted(scenario) == NO_VERDICTS


def test_each_death_is_judged_by_itself() -> None:
    scenario = dead()
    scenario.beat()
    scenario.go_silent()
    scenario.beat(session_id="b", sequence=1)
    scenario.go_silent()
    scenario.beat(session_id="b", sequence=2)
    assert counted(scenario) == VerdictCounts(deaths=3, refuted=2)


def test_a_broken_streams_death_can_be_refuted_too() -> None:
    scenario = registered()
    scenario.attach(1_000)
    scenario.wait(1_000).disconnect(broken_ms=0)
    [back] = scenario.beat()
    assert refutes_death(back, "a")
    assert scenario.states[-2] is not None
    assert scenario.states[-2].inactive_reason is InactiveReason.DISCONNECTED
    assert counted(scenario) == VerdictCounts(deaths=1, refuted=1)
