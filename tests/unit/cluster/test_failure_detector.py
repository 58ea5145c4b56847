"""Who has fallen silent, by the observer's own clock."""

from typing import NamedTuple

from liveness.cluster.failure_detector import STEP_MS_MAX, FailureDetector


class Seen(NamedTuple):
    node_id: str
    beat: int
    lease_ms: int = 4_000


def looks(failure_detector: FailureDetector, *times: tuple[int, int]) -> set[str]:
    """Looks at one node, at times and with beats."""
    lost: set[str] = set()
    for at_ms, beat in times:
        lost = failure_detector.refresh([Seen("n", beat)], at_ms, at_ms)
    return lost


def every(step_ms: int, count: int, beat: int = 1) -> list[tuple[int, int]]:
    return [(number * step_ms, beat) for number in range(count)]


def test_a_node_whose_beat_stands_still_for_its_lease_is_lost() -> None:
    assert looks(FailureDetector(), *every(500, 8)) == set()
    assert looks(FailureDetector(), *every(500, 9)) == {"n"}


def test_a_beat_proves_life() -> None:
    failure_detector = FailureDetector()
    assert looks(failure_detector, *every(500, 9)) == {"n"}
    assert looks(failure_detector, (4_500, 2)) == set()
    assert looks(failure_detector, *((4_500 + number * 500, 2) for number in range(1, 8))) == set()


def test_an_observer_that_stood_still_holds_one_step_against_others_and_no_more() -> None:
    failure_detector = FailureDetector()
    assert looks(failure_detector, (0, 1), (3_600_000, 1)) == set()
    assert failure_detector.silent_ms("n") == STEP_MS_MAX


def test_silence_counts_from_the_end_of_the_look_that_first_showed_the_beat() -> None:
    """It may have shown a beat that was raised just before it ended. The looks after it may take as long as they like."""
    failure_detector = FailureDetector()
    for number in range(3):
        assert failure_detector.refresh([Seen("n", 1)], number * 1_000, number * 1_000 + 900) == set()
    assert failure_detector.silent_ms("n") == 1_100


def test_looks_close_upon_each_other_do_not_put_a_death_off() -> None:
    failure_detector = FailureDetector()
    for number in range(400):
        failure_detector.refresh([Seen("n", 1)], number * 10, number * 10 + 10)
    assert failure_detector.refresh([Seen("n", 1)], 4_010, 4_020) == {"n"}


def test_a_node_seen_for_the_first_time_has_its_whole_lease() -> None:
    failure_detector = FailureDetector()
    failure_detector.refresh([], 0, 0)
    assert failure_detector.refresh([Seen("n", 1)], 100_000, 100_000) == set()
    assert failure_detector.silent_ms("n") == 0
