"""Workers whose stream broke, and when: a dictionary that also keeps the count of each namespace."""

from __future__ import annotations

from collections import Counter

from liveness.domain.keys import WorkerKey


class DisconnectedWorkers(dict[WorkerKey, int]):
    """Supports changes by assignment and `pop` only; other methods would leave `counts` wrong."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __setitem__(self, key: WorkerKey, at_ms: int) -> None:
        if key not in self:
            self.counts[key[0]] += 1
        super().__setitem__(key, at_ms)

    def pop(self, key: tuple[str, str], default: int | None = None) -> int | None:  # type: ignore[override]
        if key not in self:
            return default
        self.counts[key[0]] -= 1
        return super().pop(WorkerKey(*key))
