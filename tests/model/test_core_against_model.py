"""Whatever happens in whatever order, the server's core does what the model says and keeps its invariants."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from liveness.store.postgres import PostgresDatabase
from liveness.store.sqlite import SqliteDatabase
from tests.model.machine import Machine, World

EXAMPLES = int(os.environ.get("LIVENESS_TEST_MODEL_EXAMPLES", "0"))
"""For a longer run, with another seed each time."""

USUAL_EXAMPLES = {"sqlite": 80, "postgresql": 40}

RUN = settings(
    stateful_step_count=40,
    derandomize=not EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    # Making a failure smaller takes minutes; the usual run tells of it at once.
    phases=tuple(Phase) if EXAMPLES else (Phase.explicit, Phase.reuse, Phase.generate),
    print_blob=True,
)


@pytest.fixture
def world(dialect: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    if dialect == "sqlite":
        world = World(lambda: SqliteDatabase(tmp_path / "liveness.db"))
    else:
        server, name = request.getfixturevalue("postgres"), request.getfixturevalue("postgres_database")
        world = World(lambda: PostgresDatabase(server.url(name)))
    yield world
    world.close()


@pytest.mark.timeout(0 if EXAMPLES else 300)
def test_the_core_does_what_the_model_says(world: World, dialect: str) -> None:
    run = settings(RUN, max_examples=EXAMPLES or USUAL_EXAMPLES[dialect])
    run_state_machine_as_test(lambda: Machine(world), settings=run)  # type: ignore[arg-type]  # any factory will do
