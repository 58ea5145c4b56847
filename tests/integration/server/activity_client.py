"""A short-hand client for the activity calls."""

from __future__ import annotations

from typing import Any

from liveness.v1 import activity_pb2 as pb
from liveness.v1 import admin_pb2
from tests.integration.engine.engine import duration
from tests.integration.server.server_harness import NAMESPACE, ServerHarness

QUEUE = "queue"
AVAILABLE = pb.ACTIVITY_STATE_AVAILABLE
WAITING = pb.ACTIVITY_STATE_WAITING
STARTED = pb.ACTIVITY_STATE_STARTED
COMPLETED = pb.ACTIVITY_STATE_COMPLETED
FAILED = pb.ACTIVITY_STATE_FAILED
CANCELLED = pb.ACTIVITY_STATE_CANCELLED
QUARANTINED = pb.ACTIVITY_STATE_QUARANTINED


def activity_id(name: str) -> pb.ActivityId:
    return pb.ActivityId(workflow_id=f"workflow-{name}", run_id="run", activity_id=name)


class ActivityClient:
    """The activity calls of callers that schedule and of workers, on one server."""

    def __init__(self, harness: ServerHarness) -> None:
        self.harness = harness
        self._sequences: dict[str, int] = {}

    async def beat(self, worker: str = "w", **fields: Any) -> Any:
        """Send the next heartbeat of the worker's single session."""
        self._sequences[worker] = self._sequences.get(worker, 0) + 1
        return await self.harness.beat(
            worker, session_id=f"session-{worker}", sequence=self._sequences[worker], task_queue=QUEUE,
            **fields,
        )  # fmt: skip

    async def schedule(
        self, name: str, *, task_queue: str = QUEUE, namespace: str = NAMESPACE, **fields: Any
    ) -> pb.ScheduleActivityResponse:
        request = pb.ScheduleActivityRequest(
            namespace=namespace, id=activity_id(name), task_queue=task_queue, **fields
        )
        answer: pb.ScheduleActivityResponse = await self.harness.activities.ScheduleActivity(request)
        return answer

    async def poll(self, worker: str = "w", *, wait_ms: int = 0, **fields: Any) -> list[pb.ActivityTask]:
        """Poll; without `wait_ms`, return only the activities available now."""
        request = pb.PollActivityRequest(
            namespace=NAMESPACE, worker_instance_key=worker, wait=duration(wait_ms), **fields
        )
        answer: pb.PollActivityResponse = await self.harness.activities.PollActivity(request)
        return list(answer.activities)

    async def take(self, worker: str = "w", **fields: Any) -> pb.ActivityTask:
        """Poll until one activity is handed out."""
        [task] = await self.poll(worker, wait_ms=60_000, **fields)
        return task

    async def complete(
        self, task: pb.ActivityTask, worker: str = "w", result: bytes = b"", **token: int
    ) -> None:
        await self.harness.activities.CompleteActivity(
            pb.CompleteActivityRequest(**self._token(task, worker, token), result=result)
        )

    async def fail(
        self, task: pb.ActivityTask, worker: str = "w", message: str = "no", **fields: Any
    ) -> pb.FailActivityResponse:
        request = pb.FailActivityRequest(**self._token(task, worker, {}), message=message, **fields)
        answer: pb.FailActivityResponse = await self.harness.activities.FailActivity(request)
        return answer

    async def heartbeat(
        self,
        task: pb.ActivityTask,
        worker: str = "w",
        *,
        lease_epoch: int = 0,
        attempt: int = 0,
        **fields: Any,
    ) -> None:
        token = {"lease_epoch": lease_epoch or task.lease_epoch, "attempt": attempt or task.attempt}
        await self.harness.activities.RecordActivityHeartbeat(
            pb.RecordActivityHeartbeatRequest(**self._token(task, worker, token), **fields)
        )

    async def release(self, task: pb.ActivityTask, worker: str = "w") -> None:
        await self.harness.activities.ReleaseActivity(
            pb.ReleaseActivityRequest(**self._token(task, worker, {}))
        )

    def _token(self, task: pb.ActivityTask, worker: str, token: dict[str, int]) -> dict[str, Any]:
        return {
            "namespace": NAMESPACE,
            "id": task.id,
            "worker_instance_key": worker,
            "lease_epoch": token.get("lease_epoch", task.lease_epoch),
            "attempt": token.get("attempt", task.attempt),
        }

    async def claim(self, name: str, worker: str = "w", **fields: Any) -> pb.ActivityTask:
        request = pb.ClaimActivityRequest(
            namespace=NAMESPACE, id=activity_id(name), worker_instance_key=worker, **fields
        )
        answer: pb.ClaimActivityResponse = await self.harness.activities.ClaimActivity(request)
        return answer.activity

    async def describe(self, name: str, namespace: str = NAMESPACE) -> pb.Activity:
        request = pb.DescribeActivityRequest(namespace=namespace, id=activity_id(name))
        answer: pb.DescribeActivityResponse = await self.harness.activities.DescribeActivity(request)
        return answer.activity

    async def state(self, name: str) -> int:
        return (await self.describe(name)).state

    async def cancel(self, name: str, reason: str = "") -> bool:
        request = pb.CancelActivityRequest(namespace=NAMESPACE, id=activity_id(name), reason=reason)
        answer: pb.CancelActivityResponse = await self.harness.activities.CancelActivity(request)
        return answer.was_held

    async def retry(self, name: str) -> int:
        request = pb.RetryActivityRequest(namespace=NAMESPACE, id=activity_id(name))
        answer: pb.RetryActivityResponse = await self.harness.activities.RetryActivity(request)
        return answer.state

    async def listed(self, **fields: Any) -> pb.ListActivitiesResponse:
        request = pb.ListActivitiesRequest(namespace=NAMESPACE, **fields)
        answer: pb.ListActivitiesResponse = await self.harness.activities.ListActivities(request)
        return answer

    async def pause(self, worker: str = "", **fields: Any) -> int:
        request = admin_pb2.PauseWorkersRequest(namespace=NAMESPACE, worker_instance_key=worker, **fields)
        answer: admin_pb2.PauseWorkersResponse = await self.harness.admin.PauseWorkers(request)
        return answer.changed

    async def resume(self, worker: str = "", **fields: Any) -> int:
        request = admin_pb2.ResumeWorkersRequest(namespace=NAMESPACE, worker_instance_key=worker, **fields)
        answer: admin_pb2.ResumeWorkersResponse = await self.harness.admin.ResumeWorkers(request)
        return answer.changed

    async def drain(self, worker: str = "w", limit_ms: int = 60_000) -> int:
        request = admin_pb2.DrainWorkerRequest(
            namespace=NAMESPACE, worker_instance_key=worker, limit=duration(limit_ms)
        )
        answer: admin_pb2.DrainWorkerResponse = await self.harness.admin.DrainWorker(request)
        return answer.bound_activities
