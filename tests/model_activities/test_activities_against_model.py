"""Whatever happens in whatever order: no activity is lost, none is completed twice, none has two holders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from liveness.store.postgres import PostgresDatabase
from liveness.store.sqlite import SqliteDatabase
from tests.model.machine import World
from tests.model_activities.plan import fails, plan, shortened

EXAMPLES = int(os.environ.get("LIVENESS_TEST_MODEL_EXAMPLES", "0"))
"""For a longer run, with other seeds each time."""

WALKS = {"sqlite": 44, "postgresql": 5}


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
def test_activities_end_well_on_every_walk_and_walks_go_everywhere(world: World, dialect: str) -> None:
    first = Random().randrange(10**9) if EXAMPLES else 0
    for seed in range(first, first + (EXAMPLES or WALKS[dialect])):
        terms, steps = plan(seed)
        violation = fails(world, terms, steps)
        if violation is not None:
            # Making a story short takes a while; the usual run tells of it at once.
            found = shortened(world, terms, steps, violation) if EXAMPLES else violation
            raise AssertionError(f"plan({seed}) {found}") from found.__cause__
