"""The death certificate as a value, and deaths that are refuted."""

from __future__ import annotations

import pytest

from liveness.domain.death_certificate import (
    HEARTBEATS_MAX,
    NO_OTHER_DEATHS,
    STALLS_MAX,
    ConcurrentDeaths,
    Death,
    DeathCertificate,
    DeathEvidence,
    Stall,
    count_others,
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
    """A worker that sent two heartbeats; its lease ends at 30.5 s."""
    scenario = registered(profile=PROFILE, bound=(activity("x"), activity("y")))
    scenario.wait(500).beat()
    return scenario.known


def death_of(worker: Worker, known: DeathEvidence = KNOWN) -> WorkerDeactivated:
    [event] = expire_lease(worker, POLICY, 30_500, known)
    return event


def test_a_certificate_contains_the_workers_description_and_the_evidence() -> None:
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


def test_a_disconnected_worker_gets_a_certificate() -> None:
    scenario = registered(profile=PROFILE)
    scenario.attach(5_000)
    [event] = disconnect(scenario.known, POLICY, 7_000, 2_000, KNOWN)
    assert event.certificate is not None
    assert (event.certificate.silence_ms, event.certificate.company) == (7_000, KNOWN.company)


@pytest.mark.parametrize("leave", ["shut_down", "force_out"])
def test_a_worker_that_is_shut_down_or_forced_out_gets_no_certificate(leave: str) -> None:
    [event] = getattr(registered(), leave)()
    assert event.certificate is None


def test_a_drained_worker_gets_no_certificate() -> None:
    scenario = registered()
    scenario.drain(deadline_ms=1_000)
    [event] = scenario.wait(1_000).end_drain()
    assert isinstance(event, WorkerDeactivated)
    assert event.certificate is None


def test_worker_state_does_not_depend_on_the_certificate() -> None:
    worker = silent()
    known, unknown = death_of(worker), death_of(worker, DeathEvidence())
    assert known != unknown
    assert evolve(worker, known, 9, 0) == evolve(worker, unknown, 9, 0)


def test_a_certificate_keeps_the_last_heartbeats_and_stalls() -> None:
    heard = tuple(range(100))
    stalls = tuple(Stall(n, n) for n in range(100))
    found = issue_certificate(silent(), 30_500, DeathEvidence(heard, stalls))
    assert found.heartbeats == heard[-HEARTBEATS_MAX:]
    assert found.stalls == stalls[-STALLS_MAX:]


def test_merging_two_incomplete_counts_takes_the_larger_of_each() -> None:
    assert ConcurrentDeaths(1, 5, 6).max_with(ConcurrentDeaths(2, 0, 9)) == ConcurrentDeaths(2, 5, 9)


def test_those_who_died_with_a_worker_are_counted_by_host_build_and_namespace() -> None:
    deaths = [
        Death("w", "db-3", "b7"), Death("a", "db-3", "b7"), Death("b", "db-3", "b8"), Death("c", "db-4", "b7"),
    ]  # fmt: skip
    assert count_others("w", "db-3", "b7", deaths) == ConcurrentDeaths(2, 2, 3)
    assert count_others("w", "", "", [*deaths, Death("d", "", "")]) == ConcurrentDeaths(0, 0, 4)
    assert count_others("w", "db-3", "b7", []) == NO_OTHER_DEATHS


def test_a_worker_that_died_several_times_counts_once_for_each_host_and_build_it_had() -> None:
    deaths = [Death("a", "db-3", "b7"), Death("a", "db-3", "b7"), Death("a", "db-4", "b8")]
    assert count_others("w", "db-3", "b8", deaths) == ConcurrentDeaths(1, 1, 1)
    assert count_others("a", "db-3", "b7", deaths) == NO_OTHER_DEATHS, "it is no company for itself"


# -- deaths written before certificates existed


def reconstructed(detail: str, worker: Worker | None, profile: Profile = NO_PROFILE) -> DeathCertificate:
    return reconstruct_certificate(
        detail, 30_500, worker, epoch=3, session_id="a", granted_ms=20_000, profile=profile
    )


def test_the_silence_of_an_old_death_is_read_from_its_detail() -> None:
    found = reconstructed("no heartbeat for 31000 ms of a 30000 ms lease", None, PROFILE)
    assert (found.silence_ms, found.granted_ms, found.epoch) == (31_000, 30_000, 3)
    assert (found.host_name, found.build_id, found.task_queue) == ("db-3", "b7", "mail")
    assert (found.activities, found.heartbeats) == (None, ())


def test_the_silence_of_an_old_death_is_unknown_if_the_detail_lacks_it() -> None:
    found = reconstructed("its stream broke", None)
    assert (found.silence_ms, found.granted_ms) == (None, 20_000)


def test_the_last_death_of_a_worker_is_completed_from_the_workers_state() -> None:
    worker = silent()
    found = reconstructed("its stream broke", evolve(worker, death_of(worker), 9, 0))
    assert (found.silence_ms, found.granted_ms, found.host_name) == (30_000, 30_000, "db-3")


# -- refuted deaths


def counted(scenario: WorkerScenario) -> VerdictCounts:
    """Count the verdicts over the whole log, as the projection does."""
    total = NO_VERDICTS
    for before, event in zip(scenario.states, scenario.log, strict=False):
        total += count_verdict(before, event)
    return total


def dead() -> WorkerScenario:
    scenario = registered()
    scenario.go_silent()
    return scenario


def test_a_death_without_a_return_is_not_refuted() -> None:
    assert counted(dead()) == VerdictCounts(deaths=1, refuted=0)


def test_the_return_of_the_same_session_refutes_its_death() -> None:
    scenario = dead()
    scenario.beat()
    assert counted(scenario) == VerdictCounts(deaths=1, refuted=1)


def test_a_new_session_does_not_refute_the_death() -> None:
    scenario = dead()
    scenario.beat(session_id="b", sequence=1)
    assert counted(scenario) == VerdictCounts(deaths=1, refuted=0)


def test_a_client_without_a_session_does_not_refute_its_death() -> None:
    scenario = WorkerScenario()
    scenario.beat(session_id="", sequence=0)
    scenario.go_silent()
    scenario.beat(session_id="", sequence=0)
    assert counted(scenario) == VerdictCounts(deaths=1, refuted=0)


@pytest.mark.parametrize("leave", ["shut_down", "force_out"])
def test_a_shut_down_or_forced_worker_counts_neither_as_dead_nor_as_refuted(leave: str) -> None:
    scenario = registered()
    getattr(scenario, leave)()
    scenario.beat()
    assert counted(scenario) == NO_VERDICTS


def test_a_session_replaced_while_active_counts_no_death() -> None:
    scenario = registered()
    scenario.beat(session_id="b", sequence=1)
    assert counted(scenario) == NO_VERDICTS


def test_each_death_is_refuted_separately() -> None:
    scenario = dead()
    scenario.beat()
    scenario.go_silent()
    scenario.beat(session_id="b", sequence=1)
    scenario.go_silent()
    scenario.beat(session_id="b", sequence=2)
    assert counted(scenario) == VerdictCounts(deaths=3, refuted=2)


def test_a_death_by_disconnect_can_be_refuted() -> None:
    scenario = registered()
    scenario.attach(1_000)
    scenario.wait(1_000).disconnect(broken_ms=0)
    [back] = scenario.beat()
    assert refutes_death(back, "a")
    assert scenario.states[-2] is not None
    assert scenario.states[-2].inactive_reason is InactiveReason.DISCONNECTED
    assert counted(scenario) == VerdictCounts(deaths=1, refuted=1)
