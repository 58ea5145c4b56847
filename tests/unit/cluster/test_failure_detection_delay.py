"""The delay until an observer of the registry declares a node lost."""

from __future__ import annotations

from typing import NamedTuple

from liveness.cluster.failure_detector import STEP_MS_MAX, FailureDetector

LEASE_MS = 4_000


class Row(NamedTuple):
    beat: int
    node_id: str = "node"
    lease_ms: int = LEASE_MS


def lost_after_ms(read_ms: int, gap_ms: int) -> int:
    """Return the time from the end of the read that showed the last beat until the loss is declared, for
    reads of `read_ms` with pauses of `gap_ms`."""
    failure_detector = FailureDetector()
    failure_detector.refresh([Row(1)], -read_ms, 0)
    began_ms = gap_ms
    while not failure_detector.refresh([Row(1)], began_ms, began_ms + read_ms):
        began_ms += read_ms + gap_ms
    return began_ms


def test_a_node_lease_lasts_equally_long_for_any_read_interval() -> None:
    for read_ms, gap_ms in [(1, 0), (50, 0), (50, 50), (5, 500), (300, 1)]:
        passed_ms = lost_after_ms(read_ms, gap_ms)
        assert LEASE_MS <= passed_ms <= LEASE_MS + read_ms + gap_ms


def test_a_long_pause_of_the_observer_counts_as_one_step() -> None:
    failure_detector = FailureDetector()
    failure_detector.refresh([Row(1)], 0, 10)
    assert not failure_detector.refresh([Row(1)], 100_000, 100_010)
    assert failure_detector.silent_ms("node") == STEP_MS_MAX


def test_the_duration_of_a_slow_read_does_not_count_as_silence() -> None:
    """The read may have shown a beat that was written at its very end."""
    failure_detector = FailureDetector()
    failure_detector.refresh([Row(1)], 0, 10)
    failure_detector.refresh([Row(2)], 20, 900)
    failure_detector.refresh([Row(2)], 910, 920)
    assert failure_detector.silent_ms("node") == 10


def test_a_new_beat_makes_a_lost_node_live_again() -> None:
    failure_detector = FailureDetector()
    lost: set[str] = set()
    for began_ms in range(0, LEASE_MS + 1_000, 500):
        lost = failure_detector.refresh([Row(1)], began_ms, began_ms)
    assert lost == {"node"}
    assert failure_detector.refresh([Row(2)], LEASE_MS + 1_000, LEASE_MS + 1_000) == set()
