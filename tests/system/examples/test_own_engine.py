"""examples/own_engine.py"""

from __future__ import annotations

import signal
import sqlite3
from pathlib import Path
from typing import NamedTuple

from tests.system.examples.conftest import Start
from tests.system.examples.programs import FOR_EVER


class Job(NamedTuple):
    attempt: int
    state: str
    result: str


def jobs(path: Path) -> dict[str, Job]:
    with sqlite3.connect(path) as db:
        found = {row[0]: Job(*row[1:]) for row in db.execute("SELECT id, attempt, state, result FROM jobs")}
    db.close()
    return found


def test_another_process_does_the_job_of_a_killed_process(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "killed.db"
    engine = ("own_engine.py", "--db", str(path), "--jobs", "4")
    victim = start(*engine, "--seconds", FOR_EVER)
    job = victim.line_with("begun").split()[0]
    other = start(*engine, "--seconds", "0.01")
    for _ in range(3):
        other.line_with("done")
    assert jobs(path)[job] == Job(1, "running", None)  # type: ignore[arg-type]  # no result yet

    victim.signal(signal.SIGKILL)
    other.wait_success()

    found = jobs(path)
    by_the_other = f"by process {other.process.pid}"
    assert found.pop(job) == Job(2, "done", by_the_other)
    assert list(found.values()) == [Job(1, "done", by_the_other)] * 3


def test_a_frozen_process_loses_its_job_and_writes_nothing(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "frozen.db"
    engine = ("own_engine.py", "--db", str(path), "--jobs", "2")
    zombie = start(*engine, "--seconds", FOR_EVER)
    job = zombie.line_with("begun").split()[0]
    zombie.signal(signal.SIGSTOP)
    other = start(*engine, "--seconds", "0.01")
    other.wait_success()
    before = jobs(path)
    assert before[job] == Job(2, "done", f"by process {other.process.pid}")

    zombie.signal(signal.SIGCONT)

    assert f"activity {job} (attempt 1) is no longer held by this worker" in zombie.line_with("held")
    zombie.wait_success()
    assert jobs(path) == before
