"""In any order of reports, repetitions, failed commits and crashes, progress agrees with the model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from liveness.store.postgres import PostgresDatabase
from liveness.store.sqlite import SqliteDatabase
from tests.model.progress.state_machine import ProgressStateMachine
from tests.model.workers.state_machine import ModelEnvironment

SITUATIONS = {
    "OK", "REPEATED", "UNIT_QUOTA_EXCEEDED", "UNIT_NOT_FOUND", "REJECTED", "UNKNOWN_LOST", "UNKNOWN_DONE",
    "AN ID WAS FORGOTTEN",
}  # fmt: skip
EXAMPLES = {"sqlite": 25, "postgresql": 10}


@pytest.fixture
def environment(dialect: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ModelEnvironment]:
    if dialect == "sqlite":
        environment = ModelEnvironment(lambda: SqliteDatabase(tmp_path / "liveness.db"))
    else:
        server, name = request.getfixturevalue("postgres"), request.getfixturevalue("postgres_database")
        environment = ModelEnvironment(lambda: PostgresDatabase(server.url(name)))
    yield environment
    environment.close()


@pytest.mark.timeout(120)
def test_progress_agrees_with_the_model(environment: ModelEnvironment, dialect: str) -> None:
    run = settings(
        max_examples=EXAMPLES[dialect],
        stateful_step_count=50,
        derandomize=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),
        print_blob=True,
    )
    run_state_machine_as_test(lambda: ProgressStateMachine(environment), settings=run)  # type: ignore[arg-type]  # any factory will do
    missed = {what for what in SITUATIONS if not environment.seen[what]}
    assert not missed, "the run did not reach these situations"
