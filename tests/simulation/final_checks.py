"""The end of a world: all faults heal, then all workers are killed, and no work may be left undone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from liveness.store.api import TaskState
from liveness.store.codec import decode_bound_activity
from tests.simulation.audit import ACTIVE
from tests.simulation.audit_activities import name_of
from tests.simulation.fold_check import check_fold
from tests.simulation.labels import worker_label

if TYPE_CHECKING:
    from tests.simulation.world import World

HEALED_S_MAX = 60
WORKED_OFF_S_MAX = 90
TICK_S = 0.5


class FinalChecks:
    def __init__(self, world: World) -> None:
        self._world = world

    async def check(self) -> None:
        world, plan = self._world, self._world.plan
        await self._until(
            HEALED_S_MAX,
            lambda: (
                world.calm_since < world.now() and all(node_host.server for node_host in world.node_hosts)
            ),
            "not all nodes came back",
        )
        longest_s = max(plan.leases_ms) / 1_000
        await asyncio.sleep(2 * plan.node_lease_ms / 1_000 + plan.grace_ms / 1_000 + 3 + longest_s)
        self._check_back()
        world.client.stopped = True
        for runs in world.runs.values():
            for run in runs:
                run.process.kill()
        world.note("all workers are killed")
        held_s = plan.storm_settings.holds_ms(max(plan.leases_ms)) / 1_000 + plan.storm_settings.line_s(
            plan.workers
        )
        await asyncio.sleep(longest_s + held_s + plan.grace_ms / 1_000 + 1.5)
        self._check_all_over()
        await self._until(WORKED_OFF_S_MAX, self._nothing_open, "work is left undone")
        self._check_tasks()
        for shard_id in range(plan.shards):
            check_fold(world, shard_id)

    async def _until(self, seconds: float, is_so: object, otherwise: str) -> None:
        until = self._world.now() + seconds
        while not is_so():  # type: ignore[operator]
            if self._world.now() > until:
                self._world.report("recovery", f"{otherwise} within {seconds} s: {self._left()}", ())
                return
            await asyncio.sleep(TICK_S)

    def _left(self) -> str:
        activity_records = self._world.audit.activities.activity_records
        held = [(name, course.holder) for (_, name), course in activity_records.items() if course.holder]
        return f"held {held[:5]}, open tasks {self._open_tasks()[:5]}"

    def _check_back(self) -> None:
        """Check that every live worker that was not rejected for good has its lease."""
        world = self._world
        for key, runs in world.runs.items():
            run = runs[-1] if runs else None
            if run is None or not run.process.alive or run.process.stopped or run.ended or run.leaving:
                continue
            worker = world.audit.workers.get(key)
            if worker is None and run.last_refusal == "WORKER_QUOTA_EXCEEDED":
                continue  # an operator forgot it, and another worker has its place now
            if worker is None or worker.state != ACTIVE or not run.trusts_its_lease:
                state = None if worker is None else worker.state
                world.report(
                    "recovery", f"{run.session} runs, and is {state} at the server", (worker_label(key),)
                )

    def _check_all_over(self) -> None:
        for key, worker in self._world.audit.workers.items():
            if worker.state == ACTIVE:
                self._world.report(
                    "bounded lateness",
                    f"{worker_label(key)} is ACTIVE although no worker is left",
                    (worker_label(key),),
                )

    def _open_tasks(self) -> list[tuple[object, ...]]:
        return self._world.database.driver.execute(
            "SELECT task_id, shard_id, worker_key, state, attempts, last_error FROM tasks WHERE state IN (1, 2)"
        ).fetchall()

    def _nothing_open(self) -> bool:
        activity_records = self._world.audit.activities.activity_records.values()
        return not self._open_tasks() and not any(course.holder for course in activity_records)

    def _check_tasks(self) -> None:
        world = self._world
        counted = world.audit.activities.effects
        rows = world.database.driver.execute(
            "SELECT namespace, worker_key, lease_epoch, activity, state, last_error FROM tasks"
        )
        for namespace, worker, epoch, text, state, error in rows:
            bound = decode_bound_activity(text)
            if state != TaskState.DONE:
                world.report(
                    "no lost reschedule",
                    f"the task of {bound.id} is {TaskState(state).name}: {error}",
                    (worker_label((namespace, worker)),),
                )
            if not counted[namespace, worker, epoch, name_of(bound.id), bound.attempt]:
                world.sometimes("reschedule found stale")
