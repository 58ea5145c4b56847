"""The timer heap compared with a plain dictionary: due entries and their order."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from liveness.domain.keys import WorkerKey
from liveness.tasks import timer_heap
from liveness.tasks.timer_heap import TimerHeap

keys = st.sampled_from([WorkerKey("n", f"w{number}") for number in range(6)])
times = st.integers(0, 3 * timer_heap.PERIOD_MS) | st.sampled_from(
    [
        turn * timer_heap.PERIOD_MS + beside
        for turn in range(4)
        for beside in (-1, 0, 1)
        if turn or beside >= 0
    ]
)


class HeapAgainstDictionary(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.heap = TimerHeap()
        self.due: dict[WorkerKey, int] = {}

    @rule(key=keys, due_ms=times)
    def arm(self, key: WorkerKey, due_ms: int) -> None:
        self.heap.arm(key, due_ms)
        self.due[key] = due_ms

    @rule(key=keys)
    def disarm(self, key: WorkerKey) -> None:
        self.heap.disarm(key)
        self.due.pop(key, None)

    @rule(now_ms=times)
    def pop_all_due(self, now_ms: int) -> None:
        popped = []
        while (key := self.heap.pop_due(now_ms)) is not None:
            assert isinstance(key, WorkerKey)
            popped.append((self.due.pop(key), key))
        assert popped == sorted(popped), "earliest first"
        assert all(due_ms <= now_ms for due_ms, _ in popped), "none early"
        assert all(due_ms > now_ms for due_ms in self.due.values()), "none forgotten"

    @invariant()
    def one_live_entry_each(self) -> None:
        assert len(self.heap) == len(self.due)


TestHeapAgainstDictionary = HeapAgainstDictionary.TestCase
TestHeapAgainstDictionary.settings = settings(max_examples=100, stateful_step_count=40, derandomize=True)


@given(st.lists(st.tuples(keys, times)))
def test_only_the_last_deadline_of_a_worker_counts(armed: list[tuple[WorkerKey, int]]) -> None:
    heap = TimerHeap()
    for key, due_ms in armed:
        heap.arm(key, due_ms)
    popped = []
    while (due := heap.pop_due(10 * timer_heap.PERIOD_MS)) is not None:
        popped.append(due)
    assert sorted(popped) == sorted(dict(armed)), "each worker once"


def test_a_deadline_moved_many_times_takes_bounded_memory() -> None:
    heap = TimerHeap()
    for due_ms in range(3 * timer_heap.DEAD_ENTRIES_MAX):
        heap.arm(WorkerKey("n", "w"), due_ms)
    stored = len(heap._heap) + sum(map(len, heap._later.values()))
    assert stored == heap._entry_count <= timer_heap.DEAD_ENTRIES_MAX + 2
    assert heap.pop_due(3 * timer_heap.DEAD_ENTRIES_MAX) == WorkerKey("n", "w")
    assert heap.pop_due(3 * timer_heap.DEAD_ENTRIES_MAX) is None


def test_a_timer_is_due_exactly_at_its_deadline() -> None:
    heap = TimerHeap()
    heap.arm(WorkerKey("n", "w"), 100)
    assert heap.pop_due(99) is None
    assert heap.pop_due(100) == WorkerKey("n", "w")
