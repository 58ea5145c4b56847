"""When a node is taken for lost, by somebody who looks at the registry."""

from __future__ import annotations

from typing import NamedTuple

from liveness.cluster.failure_detector import STEP_MS_MAX, FailureDetector

LEASE_MS = 4_000


class Row(NamedTuple):
    beat: int
    node_id: str = "node"
    lease_ms: int = LEASE_MS


def lost_after_ms(look_ms: int, gap_ms: int) -> int:
    """From the end of the look that showed its last beat, if each look takes so long and the next begins so much later."""
    failure_detector = FailureDetector()
    failure_detector.refresh([Row(1)], -look_ms, 0)
    began_ms = gap_ms
    while not failure_detector.refresh([Row(1)], began_ms, began_ms + look_ms):
        began_ms += look_ms + gap_ms
    return began_ms


def test_a_lease_lasts_as_long_however_often_somebody_looks() -> None:
    for look_ms, gap_ms in [(1, 0), (50, 0), (50, 50), (5, 500), (300, 1)]:
        passed_ms = lost_after_ms(look_ms, gap_ms)
        assert LEASE_MS <= passed_ms <= LEASE_MS + look_ms + gap_ms


def test_the_absence_of_the_observer_counts_for_a_step() -> None:
    failure_detector = FailureDetector()
    failure_detector.refresh([Row(1)], 0, 10)
    assert not failure_detector.refresh([Row(1)], 100_000, 100_010)
    assert failure_detector.silent_ms("node") == STEP_MS_MAX


def test_a_look_that_takes_long_does_not_count_against_whoever_it_shows() -> None:
    """It may have been shown its beat at the very end of it."""
    failure_detector = FailureDetector()
    failure_detector.refresh([Row(1)], 0, 10)
    failure_detector.refresh([Row(2)], 20, 900)
    failure_detector.refresh([Row(2)], 910, 920)
    assert failure_detector.silent_ms("node") == 10


def test_a_beat_brings_a_lost_node_back() -> None:
    failure_detector = FailureDetector()
    lost: set[str] = set()
    for began_ms in range(0, LEASE_MS + 1_000, 500):
        lost = failure_detector.refresh([Row(1)], began_ms, began_ms)
    assert lost == {"node"}
    assert failure_detector.refresh([Row(2)], LEASE_MS + 1_000, LEASE_MS + 1_000) == set()
