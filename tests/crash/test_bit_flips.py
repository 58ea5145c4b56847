"""After a bit flip in a closed database, the server refuses to serve, or serves exactly the acknowledged data."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import grpc
import pytest

from liveness.store.errors import StoreError
from liveness.v1 import activity_pb2, admin_pb2, service_pb2
from tests.crash.bit_flips import ROWS, flip_in_file, flip_in_row, last_commit
from tests.crash.scale import scaled
from tests.integration.quiet_logs import quiet as quiet
from tests.integration.server.server_harness import NAMESPACE, ServerHarness
from tests.system.server.crash_loop import ReportResult
from tests.system.server.ledger import activity_ref

WORKERS = 24
FILE, LOG = "the file", "its write-ahead log"
REFUSED = b"refused"
TIMES = {FILE: 300, LOG: 150}

Served = dict[str, bytes]


class Original(NamedTuple):
    """Folders that each hold a database."""

    killed: Path
    """The database of a killed server: most of its data is in the write-ahead log."""
    stopped: Path


async def run_workload(harness: ServerHarness) -> None:
    """Let some workers die, some finish and some go on, part of it before the checkpoint and part after."""

    async def beat(number: int, sequence: int, **said: Any) -> None:
        key = f"w{number}"
        await harness.beat(
            key, session_id=f"{key}-session", sequence=sequence, lease_ms=5_000, task_queue="q", **said
        )

    for number in range(WORKERS):
        await beat(number, 1, bound_activities=[activity_ref(f"a{number}"), activity_ref(f"b{number}")])
    for sequence in (2, 3):
        for number in range(WORKERS // 2):
            await beat(number, sequence)
        await harness.advance(3_000)
    await harness.server.maintenance.checkpoint()
    for number in range(WORKERS // 3):
        await beat(number, 4, unbound_activities=[activity_ref(f"a{number}")])
        await beat(number, 5)
    await harness.advance(1_000)


@pytest.fixture(scope="module")
async def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    folder, killed, stopped = map(tmp_path_factory.mktemp, ("original", "killed", "stopped"))
    harness = await ServerHarness(f"sqlite:///{folder / 'liveness.db'}").start(takeover_grace_ms=0)
    await run_workload(harness)
    for file in folder.glob("liveness.db*"):
        shutil.copy(file, killed)
    await harness.stop()
    shutil.copy(folder / "liveness.db", stopped)
    return Original(killed, stopped)


async def serve(folder: Path) -> Served:
    """Return all answers of a server on this database; empty if the server does not start."""
    harness = ServerHarness(f"sqlite:///{folder / 'liveness.db'}")
    try:
        await harness.start()
    except StoreError:
        return {}
    try:
        return await read_everything(harness)
    finally:
        await harness.stop()


async def read_everything(harness: ServerHarness) -> Served:
    answers: Served = {}

    async def ask(name: str, call: Awaitable[Any]) -> None:
        try:
            answers[name] = (await call).SerializeToString(deterministic=True)
        except grpc.aio.AioRpcError as error:
            answers[name] = REFUSED if error.code() is not grpc.StatusCode.NOT_FOUND else b"not found"

    await ask(
        "workers",
        harness.liveness.ListWorkers(service_pb2.ListWorkersRequest(namespace=NAMESPACE, page_size=1_000)),
    )
    await ask(
        "tasks",
        harness.admin.ListTasks(
            admin_pb2.ListTasksRequest(page_size=1_000, states=admin_pb2.TaskState.values()[1:])
        ),
    )
    await ask(
        "activities",
        harness.activities.ListActivities(
            activity_pb2.ListActivitiesRequest(namespace=NAMESPACE, page_size=1_000)
        ),
    )
    for number in range(WORKERS):
        key: dict[str, Any] = {"namespace": NAMESPACE, "worker_instance_key": f"w{number}"}
        await ask(
            f"worker {number}", harness.liveness.DescribeWorker(service_pb2.DescribeWorkerRequest(**key))
        )
        await ask(
            f"history {number}", harness.liveness.GetWorkerHistory(service_pb2.GetWorkerHistoryRequest(**key))
        )
    return answers


def is_explained(name: str, answer: bytes, acknowledged: bytes) -> bool:
    """Return whether a difference is one that no row checksum can find.

    These are a task's bookkeeping, which is stored beside its payload and by which tasks are listed, and a dangling
    entry in SQLite's own index, which hides an event from a history. A damaged task is listed as such.
    """
    if name == "tasks":
        tasks, all_tasks = _without_bookkeeping(answer), _without_bookkeeping(acknowledged)
        return len(tasks) >= len(all_tasks) - 1 and all(
            task in all_tasks or not task.HasField("activity") for task in tasks
        )
    if name.startswith("history"):
        all_events = service_pb2.GetWorkerHistoryResponse.FromString(acknowledged).events
        return all(
            event in all_events for event in service_pb2.GetWorkerHistoryResponse.FromString(answer).events
        )
    return False


def _without_bookkeeping(tasks: bytes) -> list[admin_pb2.Task]:
    answer = admin_pb2.ListTasksResponse.FromString(tasks)
    for task in answer.tasks:
        for field in ("task_id", "state", "attempts", "last_error", "finish_time"):
            task.ClearField(field)
    return list(answer.tasks)


class Flips:
    """Bit flips, each in its own copy of the database."""

    def __init__(self, original: Path, folder: Path, acknowledged: Served) -> None:
        self._original = original
        self._folder = folder
        self._acknowledged = acknowledged
        self.ends: Counter[str] = Counter()
        self.violations: list[str] = []

    async def flip(self, seed: int, where: str) -> None:
        copy = self._folder / "copy"
        shutil.copytree(self._original, copy)
        path, random = copy / "liveness.db", Random(seed)
        log = path.with_name("liveness.db-wal")
        if where == LOG:
            location = flip_in_file(log, random, last_commit(log))
        else:
            location = flip_in_file(path, random) if where == FILE else flip_in_row(path, random, where)
        answers = await serve(copy)
        shutil.rmtree(copy)
        differ = [
            name for name, answer in answers.items() if answer not in (REFUSED, self._acknowledged[name])
        ]
        wrong = [name for name in differ if not is_explained(name, answers[name], self._acknowledged[name])]
        if differ and not wrong:
            self.ends["answered with less or with other bookkeeping"] += 1
        elif wrong:
            self.ends["silently wrong"] += 1
            self.violations.append(f"{location}: {', '.join(wrong[:3])} gave another answer")
        elif not answers:
            self.ends["did not start"] += 1
        else:
            self.ends["refused to answer" if REFUSED in answers.values() else "made no difference"] += 1


async def flips_of(original: Path, folder: Path) -> Flips:
    whole = folder / "whole"
    shutil.copytree(original, whole)
    acknowledged = await serve(whole)
    assert acknowledged
    assert REFUSED not in acknowledged.values()
    return Flips(original, folder, acknowledged)


async def test_the_server_does_not_serve_a_flipped_bit(original: Original, tmp_path: Path) -> None:
    """The bit is in a worker's row, or in the write-ahead log of a killed server."""
    flips = await flips_of(original.killed, tmp_path)
    await flips.flip(1, "workers")
    await flips.flip(1, LOG)
    assert flips.ends == {"did not start": 2}, flips.violations


@pytest.mark.crash_long
@pytest.mark.parametrize("where", [*ROWS, FILE, LOG])
async def test_the_server_survives_many_bit_flips(
    original: Original, tmp_path: Path, report_result: ReportResult, where: str
) -> None:
    flips = await flips_of(original.stopped if where == FILE else original.killed, tmp_path)
    times = scaled(TIMES.get(where, 60))
    for seed in range(times):
        await flips.flip(seed, where)
    ends = ", ".join(f"{count} {end}" for end, count in sorted(flips.ends.items()))
    report_result(ends, row=f"a bit of {where}", tried=times, violated=len(flips.violations))
    assert not flips.violations, "\n".join(flips.violations[:20])
