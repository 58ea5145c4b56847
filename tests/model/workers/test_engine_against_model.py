"""In any order of inputs the engine agrees with the model and keeps its invariants."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from liveness.store.postgres import PostgresDatabase
from liveness.store.sqlite import SqliteDatabase
from tests.model.workers.state_machine import EngineStateMachine, ModelEnvironment, random_walk

EXAMPLES = int(os.environ.get("LIVENESS_TEST_MODEL_EXAMPLES", "0"))
"""The number of examples of a longer run, with another seed each time."""

SHARE = {"sqlite": 1.0, "postgresql": 0.5}
"""The share of the usual run: PostgreSQL takes longer for each step."""

RUN = settings(
    stateful_step_count=60,
    derandomize=not EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    # Shrinking takes minutes; the usual run reports the failure at once.
    phases=tuple(Phase) if EXAMPLES else (Phase.explicit, Phase.reuse, Phase.generate),
    print_blob=True,
)

SITUATIONS = {
    *("REGISTERED", "RENEWED", "REPEATED", "SESSION_REPLACED", "RESURRECTED"),
    *("STALE_HEARTBEAT", "SESSION_SUPERSEDED", "WORKER_CLEANED_UP", "WORKER_NOT_ACTIVE", "WORKER_NOT_FOUND"),
    *("WORKER_QUOTA_EXCEEDED", "BINDING_QUOTA_EXCEEDED", "SESSION_NOT_CURRENT"),
    *("INACTIVE", "CLEANED_UP", "FORGOTTEN", "REINCARNATED", "A FALSE DEATH"),
    *("FORGOTTEN WHILE INACTIVE", "FORGOTTEN WHILE CLEANED_UP", "WORKER_ACTIVE"),
    *("REJECTED", "UNKNOWN_LOST", "UNKNOWN_DONE"),
}
"""Situations that a meaningful run must reach."""


@pytest.fixture
def environment(dialect: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ModelEnvironment]:
    if dialect == "sqlite":
        environment = ModelEnvironment(lambda: SqliteDatabase(tmp_path / "liveness.db"))
    else:
        server, name = request.getfixturevalue("postgres"), request.getfixturevalue("postgres_database")
        environment = ModelEnvironment(lambda: PostgresDatabase(server.url(name)))
    yield environment
    environment.close()


@pytest.mark.timeout(0 if EXAMPLES else 300)
def test_the_engine_agrees_with_the_model(environment: ModelEnvironment, dialect: str) -> None:
    run = settings(RUN, max_examples=EXAMPLES or int(40 * SHARE[dialect]))
    run_state_machine_as_test(lambda: EngineStateMachine(environment), settings=run)  # type: ignore[arg-type]  # any factory will do


@pytest.mark.timeout(0 if EXAMPLES else 300)
def test_long_walks_agree_with_the_model_and_reach_every_situation(
    environment: ModelEnvironment, dialect: str
) -> None:
    first = Random().randrange(10**9) if EXAMPLES else 0
    for seed in range(first, first + (EXAMPLES or int(24 * SHARE[dialect]))):
        random_walk(environment, seed, steps=150)
    missed = {what for what in SITUATIONS if not environment.seen[what]}
    assert not missed, "the run did not reach these situations"
