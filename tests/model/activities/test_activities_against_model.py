"""Whatever happens in whatever order: no activity is lost, none is completed twice, none has two holders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from liveness.store.postgres import PostgresDatabase
from liveness.store.sqlite import SqliteDatabase
from tests.model.activities.walk_plan import fails, plan, shrink
from tests.model.workers.state_machine import ModelEnvironment

EXAMPLES = int(os.environ.get("LIVENESS_TEST_MODEL_EXAMPLES", "0"))
"""For a longer run, with other seeds each time."""

WALKS = {"sqlite": 70, "postgresql": 6}

EVERYTHING = {
    *("a zombie refused", "refused, for INACTIVE", "refused, for lease epoch is", "refused, for not bound"),
    *("refused, for held by", "refused, for what it holds", "refused, for COMPLETED", "the same end again"),
    *("given back: its worker never confirmed that it came", "given back: its worker is not bound to it"),
    *("given back: the poll that it was handed to had ended", "given back: released by its worker"),
    *("half a hand-out", "an answer lost", "a poll hung up", "several handed out at once"),
    *(
        "CommitRejected: a hand-out",
        "CommitUnknown: a hand-out",
        "CommitUnknown: an end",
        "CommitUnknown: a loss",
    ),
    *("a shard lost to another owner", "killed in the midst of calls"),
    *("killed after a commit that nobody heard of",),
    *(
        "evicted between read and decide",
        "another life between read and decide",
        "re-read between read and decide",
        "scheduled again when finished",
    ),
    *("left with work in hand: LEASE_EXPIRED", "left with work in hand: DISCONNECTED"),
    *(
        "left with work in hand: DRAINED",
        "left with work in hand: SHUTDOWN",
        "left with work in hand: FORCED",
    ),
    *("a session replaced with work in hand", "handed work let go of", "cancelled while held"),
    *(
        "claim: ACTIVITY_HELD",
        "claim: WORKER_PAUSED",
        "claim: WORKER_DRAINING",
        "claim: BINDING_QUOTA_EXCEEDED",
    ),
    *("quarantined", "failed with its last worker", "a fresh start", "a poll waits though there is work"),
    *("handed on", "a sink refuses", "a sink hangs", "dead-lettered", "brought home from a sink"),
    *("told through a stream", "a worker cleaned up", "moved on"),
}
"""What must have come up in a run that means something."""


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
def test_activities_end_well_on_every_walk_and_walks_go_everywhere(
    environment: ModelEnvironment, dialect: str
) -> None:
    first = Random().randrange(10**9) if EXAMPLES else 0
    for seed in range(first, first + (EXAMPLES or WALKS[dialect])):
        walk_settings, steps = plan(seed)
        violation = fails(environment, walk_settings, steps)
        if violation is not None:
            # Making a story short takes a while; the usual run tells of it at once.
            found = shrink(environment, walk_settings, steps, violation) if EXAMPLES else violation
            raise AssertionError(f"plan({seed}) {found}") from found.__cause__
    if dialect == "sqlite":
        missed = {what for what in EVERYTHING if not environment.seen[what]}
        assert not missed, "a run in which this never came up says little"
