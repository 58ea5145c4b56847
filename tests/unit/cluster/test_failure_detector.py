"""The detection of silent nodes, by the observer's own clock."""

from typing import NamedTuple

from liveness.cluster.failure_detector import STEP_MS_MAX, FailureDetector


class Seen(NamedTuple):
    node_id: str
    beat: int
    lease_ms: int = 4_000


def refresh_at(failure_detector: FailureDetector, *times: tuple[int, int]) -> set[str]:
    """Refresh with one node at the given (time, beat) pairs; return the lost nodes."""
    lost: set[str] = set()
    for at_ms, beat in times:
        lost = failure_detector.refresh([Seen("n", beat)], at_ms, at_ms)
    return lost


def every(step_ms: int, count: int, beat: int = 1) -> list[tuple[int, int]]:
    return [(number * step_ms, beat) for number in range(count)]


def test_a_node_whose_beat_does_not_change_for_its_lease_is_lost() -> None:
    assert refresh_at(FailureDetector(), *every(500, 8)) == set()
    assert refresh_at(FailureDetector(), *every(500, 9)) == {"n"}


def test_a_new_beat_restarts_the_lease_of_a_node() -> None:
    failure_detector = FailureDetector()
    assert refresh_at(failure_detector, *every(500, 9)) == {"n"}
    assert refresh_at(failure_detector, (4_500, 2)) == set()
    assert refresh_at(failure_detector, *((4_500 + number * 500, 2) for number in range(1, 8))) == set()


def test_a_pause_of_the_observer_counts_as_at_most_one_step_of_silence() -> None:
    failure_detector = FailureDetector()
    assert refresh_at(failure_detector, (0, 1), (3_600_000, 1)) == set()
    assert failure_detector.silent_ms("n") == STEP_MS_MAX


def test_silence_counts_from_the_end_of_the_read_that_first_showed_the_beat() -> None:
    """That read may have shown a beat that was written just before its end. Later reads may take any time."""
    failure_detector = FailureDetector()
    for number in range(3):
        assert failure_detector.refresh([Seen("n", 1)], number * 1_000, number * 1_000 + 900) == set()
    assert failure_detector.silent_ms("n") == 1_100


def test_frequent_reads_do_not_delay_the_detection() -> None:
    failure_detector = FailureDetector()
    for number in range(400):
        failure_detector.refresh([Seen("n", 1)], number * 10, number * 10 + 10)
    assert failure_detector.refresh([Seen("n", 1)], 4_010, 4_020) == {"n"}


def test_a_newly_seen_node_gets_its_whole_lease() -> None:
    failure_detector = FailureDetector()
    failure_detector.refresh([], 0, 0)
    assert failure_detector.refresh([Seen("n", 1)], 100_000, 100_000) == set()
    assert failure_detector.silent_ms("n") == 0
