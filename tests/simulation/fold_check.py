"""Read a shard back as a take-over does, undo that, and compare the result with the log."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from liveness.domain.worker import Worker
from liveness.engine.recovery import RecoveredWorkers
from liveness.store.api import ShardSnapshot
from liveness.store.take_over import take_over
from tests.simulation import labels
from tests.simulation.audit import ACTIVE, WorkerRecord
from tests.simulation.labels import worker_label

if TYPE_CHECKING:
    from tests.simulation.world import World


def check_fold(world: World, shard_id: int) -> None:
    def read_back(connection: Connection) -> list[ShardSnapshot]:
        return take_over(connection, [shard_id], "auditor", 0)

    try:
        [snapshot] = world.database.try_out(read_back)
    except sqlite3.Error as error:
        world.report(
            "fold", f"shard {shard_id} cannot be taken over any more: {error}", (labels.shard(shard_id),)
        )
        return
    recovered = RecoveredWorkers(snapshot).workers
    seen = {key: worker for key, worker in world.audit.workers.items() if worker.shard_id == shard_id}
    if recovered.keys() != seen.keys():
        different = sorted(set(recovered).symmetric_difference(seen))
        world.report("fold", f"shard {shard_id} read back differs from its log in {different}", ())
    for key, worker in seen.items():
        found = recovered.get(key)  # type: ignore[call-overload]
        if found is not None and _told(found) != _expected(worker):
            world.report(
                "fold",
                f"{worker_label(key)} read back is {_told(found)}, its log says {_expected(worker)}",
                (worker_label(key),),
            )


def _told(worker: Worker) -> tuple[object, ...]:
    held = sorted((tuple(id), bound.attempt) for id, bound in worker.bindings.items())
    lease = (worker.renewed_ms, worker.granted_ms) if worker.state.name == ACTIVE else ()
    return (
        worker.state.name,
        worker.session_id,
        worker.sequence,
        worker.epoch,
        worker.renewed_wall_ms,
        held,
        *lease,
    )


def _expected(worker: WorkerRecord) -> tuple[object, ...]:
    lease = (worker.renewed_ms, worker.granted_ms) if worker.state == ACTIVE else ()
    held = sorted(worker.held.items())
    return (
        worker.state, worker.session, worker.sequence, worker.epoch, worker.renewed_wall_ms, held, *lease,
    )  # fmt: skip
