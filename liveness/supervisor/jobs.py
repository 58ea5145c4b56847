"""What a process works on, as activities of its worker.

A process names its `current_job` by any text. It is bound as the activity of that name, so that it is rescheduled when the
process dies, and dropped without a trace when the process goes on to another. A job that waits in the group's task queue,
because a process died with it, is claimed instead and completed at its end: then no other worker gets it, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import NamedTuple

from liveness.sdk.loop_client import LivenessClient, RpcFailed
from liveness.supervisor.sessions import HeartbeatSender, Session
from liveness.v1.activity_pb2 import (
    ACTIVITY_STATE_AVAILABLE,
    ActivityId,
    ClaimActivityRequest,
    CompleteActivityRequest,
    DescribeActivityRequest,
)
from liveness.v1.worker_pb2 import ActivityRef

CALL_TIMEOUT_MS = 3_000
UNNAMED_PART = "-"
"""As in the SDK: the run and the activity of a job that is named by its id alone."""

logger = logging.getLogger("liveness.supervisor")


class HeldJob(NamedTuple):
    activity: ActivityRef
    is_claimed: bool


class Jobs:
    """Of one process."""

    def __init__(
        self,
        client: LivenessClient,
        sender: HeartbeatSender,
        namespace: str,
        task_queue: str,
        session: Session,
    ) -> None:
        self._client = client
        self._sender = sender
        self._namespace = namespace
        self._task_queue = task_queue
        self._session = session
        self._name = ""
        self._declared: tuple[ActivityRef, ...] = ()
        self._held: HeldJob | None = None
        self._task: asyncio.Task[None] | None = None

    def update(self, name: str, declared: Sequence[ActivityRef]) -> None:
        """The process works on this job now (empty for none), and on activities that it names in full."""
        if self._session.describe(current_job=name):
            self._sender.poke()
        if tuple(declared) != self._declared:
            self._declared = tuple(declared)
            self._bind()
        if name != self._name:
            self._name = name
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._follow())

    async def _follow(self) -> None:
        """Bind the newest job, until there is no newer one."""
        try:
            current = ""
            while current != self._name:
                current = self._name
                ended, self._held = self._held, None
                if ended is not None and ended.is_claimed:
                    await self._complete(ended.activity)
                if current:
                    self._held = await self._take(current)
                self._bind()
        finally:
            self._task = None

    def _bind(self) -> None:
        held = [self._held.activity] if self._held else []
        if self._session.bind([*self._declared, *held]):
            self._sender.poke()

    async def _take(self, name: str) -> HeldJob:
        id = ActivityId(workflow_id=name, run_id=UNNAMED_PART, activity_id=UNNAMED_PART)
        try:
            known = await self._client.call(
                lambda endpoint: endpoint.activities.DescribeActivity,
                DescribeActivityRequest(namespace=self._namespace, id=id),
                CALL_TIMEOUT_MS,
            )
            if known.activity.state == ACTIVITY_STATE_AVAILABLE:
                return HeldJob(await self._claim(id), is_claimed=True)
            # It is finished, or another worker has it: what this process does is another run of it.
            id.run_id = self._session.session_id
        except RpcFailed as error:
            # Most jobs belong to another system and are not known here; a server that is away learns of it later.
            logger.debug("%s: job %s is bound as it is: %s", self._session.key, name, error)
        return HeldJob(_reference(id, 1, self._task_queue), is_claimed=False)

    async def _claim(self, id: ActivityId) -> ActivityRef:
        request = ClaimActivityRequest(
            namespace=self._namespace,
            id=id,
            worker_instance_key=self._session.key,
            session_id=self._session.session_id,
            task_queue=self._task_queue,
        )
        answer = await self._client.call(
            lambda endpoint: endpoint.activities.ClaimActivity, request, CALL_TIMEOUT_MS
        )
        return _reference(id, answer.activity.attempt, self._task_queue)

    async def _complete(self, activity: ActivityRef) -> None:
        request = CompleteActivityRequest(
            namespace=self._namespace,
            id=ActivityId(
                workflow_id=activity.workflow_id, run_id=activity.run_id, activity_id=activity.activity_id
            ),
            worker_instance_key=self._session.key,
            lease_epoch=self._session.epoch,
            attempt=activity.attempt,
            session_id=self._session.session_id,
        )
        try:
            await self._client.call(
                lambda endpoint: endpoint.activities.CompleteActivity, request, CALL_TIMEOUT_MS
            )
        except RpcFailed as error:
            logger.warning("%s: cannot complete job %s: %s", self._session.key, activity.workflow_id, error)


def _reference(id: ActivityId, attempt: int, task_queue: str) -> ActivityRef:
    return ActivityRef(
        workflow_id=id.workflow_id,
        run_id=id.run_id,
        activity_id=id.activity_id,
        attempt=attempt,
        task_queue=task_queue,
    )
