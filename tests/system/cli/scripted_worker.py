"""A worker that a test controls: it takes and ends activities, and keeps a stream open as long as the test wants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration

from liveness.v1.activity_pb2 import (
    ActivityTask,
    CompleteActivityRequest,
    FailActivityRequest,
    PollActivityRequest,
)
from liveness.v1.activity_pb2_grpc import ActivityServiceStub
from liveness.v1.service_pb2 import AttachRequest
from liveness.v1.service_pb2_grpc import LivenessServiceStub
from tests.system.cli.shell import Shell

SECONDS_MAX = 30


class ScriptedWorker:
    def __init__(self, shell: Shell, key: str = "w", **fields: Any) -> None:
        self.key = key
        self._shell = shell
        self._fields = {"session_id": "session", "task_queue": "q", **fields}
        self.beat()

    def beat(self) -> list[str]:
        """Send a heartbeat, and return the workflow ids of the activities to cancel."""
        result = self._shell.heartbeat(self.key, **self._fields)
        return [ref.workflow_id for ref in result.cancel_activities]

    def take(self) -> ActivityTask:
        """Wait for an activity of its task queue."""
        request = PollActivityRequest(
            namespace=self._shell.namespace, worker_instance_key=self.key, wait=Duration(seconds=SECONDS_MAX)
        )
        with grpc.insecure_channel(self._shell.address) as channel:
            (task,) = ActivityServiceStub(channel).PollActivity(request, timeout=2 * SECONDS_MAX).activities
        return task

    def complete(self, task: ActivityTask, result: bytes, result_encoding: str = "") -> None:
        request = CompleteActivityRequest(result=result, result_encoding=result_encoding, **self._token(task))
        with grpc.insecure_channel(self._shell.address) as channel:
            ActivityServiceStub(channel).CompleteActivity(request, timeout=SECONDS_MAX)

    def fail(self, task: ActivityTask, message: str, *, permanently: bool = False) -> None:
        request = FailActivityRequest(message=message, non_retryable=permanently, **self._token(task))
        with grpc.insecure_channel(self._shell.address) as channel:
            ActivityServiceStub(channel).FailActivity(request, timeout=SECONDS_MAX)

    def _token(self, task: ActivityTask) -> dict[str, Any]:
        return {
            "namespace": self._shell.namespace,
            "id": task.id,
            "worker_instance_key": self.key,
            "lease_epoch": task.lease_epoch,
            "attempt": task.attempt,
        }

    @contextmanager
    def attached(self, grace_s: int) -> Iterator[None]:
        """Attach a stream, which breaks without a shutdown at the end."""
        requests: SimpleQueue[AttachRequest | None] = SimpleQueue()
        attach = AttachRequest.Attach(
            namespace=self._shell.namespace,
            worker_instance_key=self.key,
            session_id=self._fields["session_id"],
            disconnect_grace=Duration(seconds=grace_s),
        )
        requests.put(AttachRequest(attach=attach))
        with grpc.insecure_channel(self._shell.address) as channel:
            stream = LivenessServiceStub(channel).Attach(iter(requests.get, None), timeout=SECONDS_MAX)
            try:
                answer = next(stream).attached
                assert not answer.HasField("status"), answer.status.message
                yield
            finally:
                stream.cancel()
                requests.put(None)
