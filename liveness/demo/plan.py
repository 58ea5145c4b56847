"""The size of the demo: how many workers and activities, how long they take, and with which leases."""

from __future__ import annotations

from dataclasses import dataclass

TASK_QUEUE = "demo"
ACTIVITY_TYPE = "hash"
BLOCK_PREFIX = "block-"
"""The beginning of every activity name."""
NAMESPACE = "default"


class DemoFailed(Exception):
    """The demo cannot continue. The message is a sentence for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    workers: int
    activities: int
    seed: int
    slots: int = 2
    """How many activities a worker runs at a time."""
    lease_s: float = 5.0
    grace_s: float = 2.0
    """How long a worker's connection may be gone before its lease ends."""
    work_ms: tuple[int, int] = (800, 2_000)
    """The shortest and the longest activity."""
    scheduling_ms: int = 17_000
    """Some activities are scheduled at the start, some over this time, and some when the fault script needs busy workers."""
    fault_gap_ms: int = 3_000
    """The time between two faults."""
    extra_kill: bool = True
    """Whether one more worker is killed after the zombie was refused."""
    limit_s: float = 180.0

    @property
    def fault_count(self) -> int:
        return 4 if self.extra_kill else 3


def full(*, workers: int | None, activities: int | None, seed: int) -> Plan:
    return Plan(workers=workers or 4, activities=activities or 72, seed=seed)


def fast(*, workers: int | None, activities: int | None, seed: int) -> Plan:
    """A small demo that takes a few seconds."""
    return Plan(
        workers=workers or 3,
        activities=activities or 18,
        seed=seed,
        lease_s=2.0,
        grace_s=0.8,
        work_ms=(250, 600),
        scheduling_ms=3_000,
        fault_gap_ms=500,
        extra_kill=False,
        limit_s=120.0,
    )
