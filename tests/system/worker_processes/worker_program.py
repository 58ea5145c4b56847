"""A worker's program: `python -m tests.system.worker_processes.worker_program OPTIONS`, the options as JSON.

Its activities, by type:

quick      takes as many milliseconds as its input says
gated      lasts until the file of its name, or of its name and the worker's, appears among the gates
careless   the same in a thread, and reports that it is complete even if it was lost
stubborn   takes its time in a thread like a quick one, and reports like a careless one
freezing   keeps the event loop from running for as many milliseconds as its input says
burning    computes in a thread until its gate appears, and hardly ever lets go of the interpreter by itself
poisonous  kills the process
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import grpc

from liveness.sdk import ActivityLost, FencingToken, LivenessSdkError, Task, Worker
from liveness.sdk.rpc_failures import failure_of_call
from liveness.v1.activity_pb2 import ActivityId, CompleteActivityRequest
from liveness.v1.activity_pb2_grpc import ActivityServiceStub
from tests.system.worker_processes.worker_notes import Action, NoteWriter

START_SECONDS = 60.0
CALL_SECONDS = 60.0
LOOK_SECONDS = 0.01
COUNT_SECONDS = 0.02
BURN_SECONDS = 0.5
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    address: str
    namespace: str
    task_queue: str
    key: str
    lease: float
    grace: float | None
    slots: int
    stop_timeout: float
    notes: str
    gates: str
    insist_address: str
    """The address to which a careless body reports, without a proxy."""
    parent: int


class ActivityBodies:
    """The activities that the worker can run."""

    def __init__(self, options: Options, note_writer: NoteWriter) -> None:
        self._options = options
        self._note_writer = note_writer

    def register(self, worker: Worker) -> None:
        worker.activity("quick")(self._quick)
        worker.activity("gated")(self._gated)
        worker.activity("careless")(self._careless)
        worker.activity("stubborn")(self._stubborn)
        worker.activity("freezing")(self._freezing)
        worker.activity("burning")(self._burning)
        worker.activity("poisonous")(self._poisonous)

    async def _quick(self, task: Task) -> object:
        with self._noted(task):
            await asyncio.sleep(task.json()["ms"] / 1_000)
        return self._signed(task)

    async def _gated(self, task: Task) -> object:
        with self._noted(task):
            while not self._gate_is_open(task):
                await asyncio.sleep(LOOK_SECONDS)
        return self._signed(task)

    def _careless(self, task: Task) -> object:
        token = task.fencing_token
        with self._noted(task):
            while not self._gate_is_open(task):
                time.sleep(LOOK_SECONDS)
            self._check(task, token)
        return self._signed(task)

    def _stubborn(self, task: Task) -> object:
        token = task.fencing_token
        with self._noted(task):
            time.sleep(task.json()["ms"] / 1_000)
            self._check(task, token)
        return self._signed(task)

    async def _freezing(self, task: Task) -> object:
        with self._noted(task):
            time.sleep(task.json()["ms"] / 1_000)
        return self._signed(task)

    def _burning(self, task: Task) -> object:
        with self._noted(task):
            while not self._gate_is_open(task):
                until, number = time.monotonic() + BURN_SECONDS, 0
                while time.monotonic() < until:
                    number += 1
        return self._signed(task)

    async def _poisonous(self, task: Task) -> None:
        with self._noted(task):
            os.kill(os.getpid(), signal.SIGKILL)

    def _gate_is_open(self, task: Task) -> bool:
        gates = Path(self._options.gates)
        return (gates / task.id).exists() or (gates / f"{task.id}@{self._options.key}").exists()

    def _signed(self, task: Task) -> object:
        return {"worker": self._options.key, "attempt": task.attempt}

    @contextmanager
    def _noted(self, task: Task) -> Iterator[None]:
        token = task.fencing_token
        names = names_of(task, token.lease_epoch)
        self._note_writer.add(Action.STARTED, **names)
        forget = task.lost.then(lambda: self._note_writer.add(Action.LOST, text=task.lost.reason, **names))
        try:
            yield
        except (asyncio.CancelledError, ActivityLost):
            action = Action.STOPPED if task.lost.is_set() else Action.HANDED_BACK
            self._note_writer.add(action, **names)
            raise
        else:
            self._note_writer.add(Action.FINISHED, **names)
        finally:
            forget()

    def _check(self, task: Task, token: FencingToken) -> None:
        try:
            task.check()
        except ActivityLost:
            self._insist(task, token.lease_epoch)
            raise

    def _insist(self, task: Task, epoch: int) -> None:
        """Report a lost attempt as complete."""
        ref = task.ref
        request = CompleteActivityRequest(
            namespace=self._options.namespace,
            id=ActivityId(workflow_id=ref.workflow_id, run_id=ref.run_id, activity_id=ref.activity_id),
            worker_instance_key=self._options.key,
            lease_epoch=epoch,
            attempt=ref.attempt,
            result=json.dumps(self._signed(task)).encode(),
        )
        names = names_of(task, epoch)
        with grpc.insecure_channel(self._options.insist_address) as channel:
            try:
                ActivityServiceStub(channel).CompleteActivity(
                    request, timeout=CALL_SECONDS, wait_for_ready=True
                )
            except grpc.RpcError as error:
                refusal = failure_of_call(cast(grpc.Call, error))  # the stub's exception is also a call
                self._note_writer.add(Action.REFUSED, text=refusal.reason or refusal.code.name, **names)
            else:
                self._note_writer.add(Action.ACCEPTED, **names)


def names_of(task: Task, epoch: int) -> dict[str, str | int]:
    return {"activity": task.id, "attempt": task.attempt, "epoch": epoch}


async def work(options: Options, note_writer: NoteWriter) -> None:
    async with Worker(
        options.address,
        namespace=options.namespace,
        task_queue=options.task_queue,
        instance_key=options.key,
        lease=options.lease,
        disconnect_grace=options.grace,
        max_concurrent=options.slots,
        stop_timeout=options.stop_timeout,
        start_timeout=START_SECONDS,
    ) as worker:
        ActivityBodies(options, note_writer).register(worker)
        note_writer.add(Action.RUNNING, epoch=worker.lease_epoch)
        counting = asyncio.create_task(count(worker, note_writer))
        try:
            await worker.run()
        finally:
            counting.cancel()
            note_count(worker, note_writer)


async def count(worker: Worker, note_writer: NoteWriter) -> None:
    noted = (0, 0, 0)
    while True:
        await asyncio.sleep(COUNT_SECONDS)
        stats = worker.stats
        if noted != (noted := (stats.completed, stats.lost, stats.released)):
            note_count(worker, note_writer)


def note_count(worker: Worker, note_writer: NoteWriter) -> None:
    stats = worker.stats
    note_writer.add(Action.COUNTED, completed=stats.completed, lost=stats.lost, released=stats.released)


def main() -> None:
    options = Options(**json.loads(sys.argv[1]))
    # The kernel ends this process with its parent, even if it is stopped.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != options.parent:
        sys.exit("orphaned")
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    note_writer = NoteWriter(Path(options.notes), options.key)
    try:
        asyncio.run(work(options, note_writer))
    except LivenessSdkError as error:
        note_writer.add(Action.ENDED, text=type(error).__name__)
        sys.exit(f"error: {error}")
    note_writer.add(Action.ENDED)


if __name__ == "__main__":
    main()
