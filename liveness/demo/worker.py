"""A worker process of the demo: it hashes blocks and notes what it does.

It is careless on purpose. The SDK tells it that its lease has ended and reports nothing after that; this worker still
reports its work, with the fencing token that it was given. The server must refuse the report.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path
from typing import cast

import grpc

from liveness.clock import SystemClock
from liveness.demo.dataset import digest_of
from liveness.demo.notes import Note, NoteKind, NoteWriter
from liveness.demo.plan import ACTIVITY_TYPE, NAMESPACE, TASK_QUEUE
from liveness.sdk import ActivityLost, CannotStart, FencingToken, Task, Worker
from liveness.sdk.rpc_failures import failure_of_call
from liveness.v1.activity_pb2 import ActivityId, CompleteActivityRequest
from liveness.v1.activity_pb2_grpc import ActivityServiceStub

COUNT_INTERVAL_MS = 50
REPORT_TIMEOUT_SECONDS = 5.0
START_TIMEOUT_SECONDS = 30.0


async def run_worker(options: Namespace) -> None:
    name: str = options.name
    note_writer = NoteWriter(options.folder / f"{name}.jsonl")

    def hash_block(task: Task) -> object:
        token = task.fencing_token
        started = Note(kind=NoteKind.STARTED, worker=name, activity=task.id, attempt=task.attempt)
        note_writer.add(started)
        block, work_ms = options.folder / task.json()["block"], task.json()["work_ms"]
        digest = digest_of(block, work_ms, rest=task.lost.wait_blocking)
        try:
            task.check()
        except ActivityLost:
            reason = report_anyway(options.address, task, name, token)
            kind = NoteKind.REFUSED if reason else NoteKind.ACCEPTED
            note_writer.add(replace(started, kind=kind, digest=digest, reason=reason))
            raise
        note_writer.add(replace(started, kind=NoteKind.FINISHED, digest=digest))
        return {"worker": name, "attempt": task.attempt, "digest": digest}

    async with Worker(
        options.address,
        namespace=NAMESPACE,
        task_queue=TASK_QUEUE,
        instance_key=name,
        lease=options.lease,
        disconnect_grace=options.grace,
        max_concurrent=options.slots,
        stop_timeout=2.0,
        start_timeout=START_TIMEOUT_SECONDS,
    ) as worker:
        worker.activity(ACTIVITY_TYPE)(hash_block)
        counting = asyncio.create_task(note_completions(worker, note_writer, name))
        await worker.run()
        counting.cancel()
        note_writer.add(Note(kind=NoteKind.ACKNOWLEDGED, worker=name, count=worker.stats.completed))


def report_anyway(address: str, task: Task, name: str, token: FencingToken) -> str:
    """Report a lost attempt as complete. Returns the reason of the refusal; empty if the server accepted the report."""
    request = CompleteActivityRequest(
        namespace=NAMESPACE,
        id=ActivityId(
            workflow_id=task.ref.workflow_id, run_id=task.ref.run_id, activity_id=task.ref.activity_id
        ),
        worker_instance_key=name,
        lease_epoch=token.lease_epoch,
        attempt=token.attempt,
        result=b"from a zombie",
    )
    with grpc.insecure_channel(address) as channel:
        try:
            ActivityServiceStub(channel).CompleteActivity(request, timeout=REPORT_TIMEOUT_SECONDS)
        except grpc.RpcError as error:
            rpc_failure = failure_of_call(cast(grpc.Call, error))  # what a stub raises is both
            return rpc_failure.reason or rpc_failure.code.name
    return ""


async def note_completions(worker: Worker, note_writer: NoteWriter, name: str) -> None:
    clock = SystemClock()
    noted = 0
    while True:
        await clock.sleep(COUNT_INTERVAL_MS)
        if worker.stats.completed != noted:
            noted = worker.stats.completed
            note_writer.add(Note(kind=NoteKind.ACKNOWLEDGED, worker=name, count=noted))


def main() -> None:
    parser = ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--lease", required=True, type=float)
    parser.add_argument("--grace", required=True, type=float)
    parser.add_argument("--slots", required=True, type=int)
    try:
        asyncio.run(run_worker(parser.parse_args()))
    except CannotStart as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
