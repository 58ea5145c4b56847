"""In any order of events no activity is lost, none is completed twice, and none has two holders."""

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
"""The number of walks of a longer run, with other seeds each time."""

WALKS = {"sqlite": 70, "postgresql": 6}

SITUATIONS = {
    *("a token fenced off", "refused: INACTIVE", "refused: lease epoch is", "refused: not bound"),
    *("refused: held by", "refused: it holds attempt", "refused: COMPLETED", "a repeated end"),
    *("given back: its worker never confirmed that it came", "given back: its worker is not bound to it"),
    *("given back: the poll that it was handed to had ended", "given back: released by its worker"),
    *("a hand-out on one side only", "an answer lost", "a poll cancelled", "several handed out at once"),
    *(
        "CommitRejected: a hand-out",
        "CommitUnknown: a hand-out",
        "CommitUnknown: an end",
        "CommitUnknown: a loss",
    ),
    *("a shard lost to another owner", "killed during calls"),
    *("killed after an unanswered commit",),
    *(
        "evicted between read and decide",
        "retried between read and decide",
        "re-read between read and decide",
        "scheduled again when finished",
    ),
    *("deactivated with bindings: LEASE_EXPIRED", "deactivated with bindings: DISCONNECTED"),
    *(
        "deactivated with bindings: DRAINED",
        "deactivated with bindings: SHUTDOWN",
        "deactivated with bindings: FORCED",
    ),
    *("a session replaced with bindings", "handed-out work unbound", "cancelled while held"),
    *(
        "claim: ACTIVITY_HELD",
        "claim: WORKER_PAUSED",
        "claim: WORKER_DRAINING",
        "claim: BINDING_QUOTA_EXCEEDED",
    ),
    *(
        "quarantined",
        "failed by the last allowed death",
        "retried by an operator",
        "a poll waits though there is work",
    ),
    *("handed on", "a sink refuses", "a sink hangs", "dead-lettered", "hand-on cancelled"),
    *("timed out: start_to_close", "timed out: heartbeat", "timed out: schedule_to_start"),
    *("timed out: schedule_to_close", "a heartbeat of an activity"),
    *("orders compared on a stream", "a worker cleaned up", "rescheduled"),
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
def test_activities_keep_their_promises_on_every_walk(environment: ModelEnvironment, dialect: str) -> None:
    first = Random().randrange(10**9) if EXAMPLES else 0
    for seed in range(first, first + (EXAMPLES or WALKS[dialect])):
        walk_settings, steps = plan(seed)
        violation = fails(environment, walk_settings, steps)
        if violation is not None:
            # Shrinking takes a while; the usual run reports the failure at once.
            found = shrink(environment, walk_settings, steps, violation) if EXAMPLES else violation
            raise AssertionError(f"plan({seed}) {found}") from found.__cause__
    if dialect == "sqlite":
        missed = {what for what in SITUATIONS if not environment.seen[what]}
        assert not missed, "the run did not reach these situations"
