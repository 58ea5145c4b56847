"""The participants of walks: workers, task queues, and activities with different retry policies."""

from __future__ import annotations

from typing import Any, NamedTuple

from liveness.domain.events import NO_LIMITS, Retry, TimeLimit, TimeLimits
from liveness.domain.keys import ActivityKey
from liveness.domain.policy import DEFAULT_POLICY
from liveness.v1 import activity_pb2 as pb
from liveness.v1 import worker_pb2
from tests.integration.engine.engine import duration
from tests.model.activities.activity_checker import Token

NAMESPACE = "north"
WORKERS = ("w1", "w2", "w3")
assert len(WORKERS) < DEFAULT_POLICY.storm_min_workers, "the model knows no storms"
QUEUES = ("q-a", "q-b", "q-delivered")
ACTIVITIES = 8
KEYS = tuple(ActivityKey(NAMESPACE, f"flow-{n}", "run", f"a{n}") for n in range(ACTIVITIES))


class Step(NamedTuple):
    name: str
    args: dict[str, Any]
    concurrent: bool = False

    def __str__(self) -> str:
        args = ", ".join(f"{name}={value!r}" for name, value in self.args.items())
        return f"{self.name}({args})" + (" ..." if self.concurrent else "")


class WalkSettings(NamedTuple):
    """Settings of a whole walk."""

    quota: int = 3
    cleanup_ms: int = 3_600_000


def queue_of(key: ActivityKey) -> str:
    return QUEUES[KEYS.index(key) % len(QUEUES)]


RETRIES = (
    Retry(500, 2.0, 1_000),
    Retry(500, 2.0, 1_000, max_attempts=2),
    Retry(500, 2.0, 1_000, max_deaths=2),
    Retry(500, 2.0, 1_000, max_deaths=0),
)


def retry_of(key: ActivityKey) -> pb.RetryPolicy:
    retry = RETRIES[KEYS.index(key) % len(RETRIES)]
    return pb.RetryPolicy(
        initial_interval=duration(retry.initial_ms), backoff_coefficient=retry.coefficient,
        maximum_interval=duration(retry.max_ms), maximum_attempts=retry.max_attempts,
        maximum_worker_deaths=retry.max_deaths,
    )  # fmt: skip


LIMITS = (
    NO_LIMITS,
    TimeLimits(start_to_close_ms=3_000),
    TimeLimits(heartbeat_ms=1_500),
    TimeLimits(schedule_to_close_ms=20_000, schedule_to_start_ms=9_000, heartbeat_ms=4_000),
)
"""Shorter than some leases, and longer than others."""


def timeouts_of(key: ActivityKey) -> pb.ActivityTimeouts:
    # Every retry policy meets several limits.
    limits = LIMITS[KEYS.index(key) // 2 % len(LIMITS)]
    return pb.ActivityTimeouts(
        **{
            f"{limit}_timeout": duration(limit_ms)
            for limit in TimeLimit
            if (limit_ms := getattr(limits, f"{limit}_ms"))
        }
    )


def id_of(key: ActivityKey) -> pb.ActivityId:
    return pb.ActivityId(**key.id._asdict())


def ref_to(token: Token, *, queue: bool = True) -> worker_pb2.ActivityRef:
    task_queue = queue_of(token.key) if queue else ""
    return worker_pb2.ActivityRef(**token.key.id._asdict(), attempt=token.attempt, task_queue=task_queue)
