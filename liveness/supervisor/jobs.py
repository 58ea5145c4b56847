"""What a process works on, as activities of its worker.

A process names its `current_job` by any text. It is bound as the activity of that name, so that it is rescheduled when the
process dies, and dropped without a trace when the process goes on to another. A job that waits in the group's task queue,
because a process died with it, is claimed instead and completed at its end: then no other worker gets it, too.

Nothing is bound before the server knows the session, which it does after the report of how the process before it ended: until
then that process still holds its job. The other way round, `settle` comes before the report that a process has ended: what it
has finished must not be rescheduled, and what it has just begun must be.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import grpc

from liveness.clock import Clock
from liveness.sdk.loop_client import LivenessClient, RpcFailed
from liveness.supervisor.sessions import HeartbeatSender, Session, job_key
from liveness.v1.activity_pb2 import (
    ACTIVITY_STATE_AVAILABLE,
    ACTIVITY_STATE_STARTED,
    Activity,
    ActivityId,
    ClaimActivityRequest,
    CompleteActivityRequest,
    DescribeActivityRequest,
)
from liveness.v1.worker_pb2 import ActivityRef

CALL_TIMEOUT_MS = 3_000
UNNAMED_PART = "-"
"""As in the SDK: the run and the activity of a job that is named by its id alone."""
RETRY_MS = (100, 2_000)
LEFT_POLL_MS = 20
LEFT_WAIT_MS = 5_000
"""How long to wait until a job that the process before it has left is rescheduled. The server does that within milliseconds."""

logger = logging.getLogger("liveness.supervisor")


class HeldJob(NamedTuple):
    name: str
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
        clock: Clock,
        before: Jobs | None = None,
    ) -> None:
        """`before`: of the process before this one."""
        self._client = client
        self._sender = sender
        self._namespace = namespace
        self._task_queue = task_queue
        self._session = session
        self._clock = clock
        self._before = before
        if before is not None:
            before._before = None
        self._name = ""
        self._followed = ""
        """The name that `_follow` has seen last."""
        self._declared: tuple[ActivityRef, ...] = ()
        self._held: HeldJob | None = None
        self._task: asyncio.Task[None] | None = None
        session.on_registered = self._follow_soon

    def update(self, name: str, declared: Sequence[ActivityRef]) -> None:
        """The process works on this job now (empty for none), and on activities that it names in full."""
        if self._session.is_over:
            return
        if self._session.describe(current_job=name):
            self._sender.poke()
        if tuple(declared) != self._declared:
            self._declared = tuple(declared)
            self._bind()
        self._name = name
        self._follow_soon()

    def drop(self, cancelled: Iterable[ActivityRef]) -> None:
        """The server gave these to another worker."""
        if self._held is not None and job_key(self._held.activity) in map(job_key, cancelled):
            self._held = None

    async def settle(self) -> None:
        """Wait until the server knows all that the process told, but for a last heartbeat."""
        while self._task is not None:
            await asyncio.shield(self._task)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    @property
    def _left_before(self) -> str:
        """What the process before worked on when it ended."""
        held = self._before._held if self._before is not None else None
        return held.name if held is not None else ""

    def _follow_soon(self) -> None:
        if self._task is None and self._session.is_registered and self._followed != self._name:
            self._task = asyncio.get_running_loop().create_task(self._follow())

    async def _follow(self) -> None:
        """Bind the newest job, until there is no newer one."""
        try:
            while self._followed != self._name:
                self._followed = name = self._name
                ended, self._held = self._held, None
                if ended is not None and ended.is_claimed:
                    await self._complete(ended.activity)
                if name:
                    self._held = await self._take(name)
                self._bind()
        finally:
            self._task = None

    def _bind(self) -> None:
        held = [self._held.activity] if self._held else []
        if self._session.bind([*self._declared, *held]):
            self._sender.poke()

    async def _take(self, name: str) -> HeldJob | None:
        id = ActivityId(workflow_id=name, run_id=UNNAMED_PART, activity_id=UNNAMED_PART)
        try:
            known = await self._describe(id)
            if known is not None and known.state == ACTIVITY_STATE_AVAILABLE:
                if self._session.is_over:
                    return None  # the process has ended, and others are offered the job already
                return HeldJob(name, await self._claim(id), is_claimed=True)
            if known is not None:
                # It is finished, or another worker has it: what this process does is another run of it.
                id.run_id = self._session.session_id
        except RpcFailed as error:
            # A server that is away learns of it later.
            logger.debug("%s: job %s is bound as it is: %s", self._session.key, name, error)
        return HeldJob(name, _reference(id, 1, self._task_queue), is_claimed=False)

    async def _describe(self, id: ActivityId) -> Activity | None:
        """Return the activity of this name; None if there is none: most jobs belong to another system. One that the process
        before has left is waited for."""
        end_ms = self._clock.monotonic_ms() + LEFT_WAIT_MS
        while True:
            known = await self._find(id)
            held_before = (
                known is not None
                and known.state == ACTIVITY_STATE_STARTED
                and known.worker_instance_key == self._session.key
                and known.lease_epoch < self._session.epoch
            )
            not_there_yet = known is None and id.workflow_id == self._left_before
            if not (held_before or not_there_yet) or self._clock.monotonic_ms() >= end_ms:
                return known
            await self._clock.sleep(LEFT_POLL_MS)

    async def _find(self, id: ActivityId) -> Activity | None:
        try:
            found = await self._client.call(
                lambda endpoint: endpoint.activities.DescribeActivity,
                DescribeActivityRequest(namespace=self._namespace, id=id),
                CALL_TIMEOUT_MS,
            )
        except RpcFailed as error:
            if error.rpc_failure.code is grpc.StatusCode.NOT_FOUND:
                return None
            raise
        activity: Activity = found.activity
        return activity

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
        """Tell the server that a claimed job is done, also if it is away for long: what is merely given back runs again."""
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
        wait_ms = RETRY_MS[0]
        while True:
            try:
                await self._client.call(
                    lambda endpoint: endpoint.activities.CompleteActivity, request, CALL_TIMEOUT_MS
                )
                return
            except RpcFailed as error:
                if not error.rpc_failure.is_retryable:
                    logger.warning(
                        "%s: cannot complete job %s: %s", self._session.key, activity.workflow_id, error
                    )
                    return
                await self._clock.sleep(max(wait_ms, error.rpc_failure.retry_after_ms))
                wait_ms = min(wait_ms * 2, RETRY_MS[1])


def _reference(id: ActivityId, attempt: int, task_queue: str) -> ActivityRef:
    return ActivityRef(
        workflow_id=id.workflow_id,
        run_id=id.run_id,
        activity_id=id.activity_id,
        attempt=attempt,
        task_queue=task_queue,
    )
