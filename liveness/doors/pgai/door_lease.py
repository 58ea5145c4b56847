"""One follower per namespace: it is the worker `door:pgai` of liveness, whose key is registered only while it is free."""

from __future__ import annotations

from uuid import uuid4

import structlog

from liveness.background import RepeatedWarning
from liveness.clock import Clock
from liveness.doors.pgai.connection import shown_dsn
from liveness.doors.pgai.settings import FollowerSettings
from liveness.sdk.loop_client import LivenessClient, RpcFailed
from liveness.v1.service_pb2 import RecordWorkerHeartbeatRequest, ShutdownWorkerRequest
from liveness.v1.worker_pb2 import (
    WORKER_STATE_ACTIVE,
    WORKER_STATUS_RUNNING,
    HeartbeatResult,
    WorkerHeartbeat,
)

logger = structlog.get_logger("liveness.door")

DOOR_KEY = "door:pgai"
LEASE_S = 8
CALL_TIMEOUT_MS = 2_000


class LivenessAway(Exception):
    """liveness does not answer. The message says why."""


class DoorLease:
    def __init__(self, settings: FollowerSettings, client: LivenessClient, clock: Clock) -> None:
        self._namespace = settings.namespace
        self._is_alone = settings.is_alone
        self._database = shown_dsn(settings.dsn)
        self._client = client
        self._warning = RepeatedWarning(logger, "liveness refuses the follower", clock)
        self.session_id = uuid4().hex
        self.epoch = 0
        """Of the lease; 0 if this follower does not hold it."""

    async def hold(self) -> bool:
        """Take or renew the lease. Returns whether this follower holds it at a moment after this call began, so that no other
        one had read anything by then. Raises LivenessAway."""
        beat = WorkerHeartbeat(
            worker_instance_key=DOOR_KEY,
            session_id=self.session_id,
            only_if_free=not self._is_alone,
            new_incarnation=True,
            lease_epoch=self.epoch,
            status=WORKER_STATUS_RUNNING,
            labels={"door": "pgai", "database": self._database[:200]},
        )
        beat.lease_duration.FromSeconds(LEASE_S)
        try:
            answer: HeartbeatResult = await self._client.call(
                lambda endpoint: endpoint.liveness.RecordWorkerHeartbeat,
                RecordWorkerHeartbeatRequest(namespace=self._namespace, heartbeat=beat),
                CALL_TIMEOUT_MS,
            )
        except RpcFailed as error:
            failure = error.rpc_failure
            if failure.is_retryable:
                raise LivenessAway(str(failure)) from None
            if failure.reason in ("SESSION_SUPERSEDED", "WORKER_CLEANED_UP"):
                self.session_id = uuid4().hex
            elif failure.reason != "WORKER_KEY_HELD":
                self._warning.warn(namespace=self._namespace, why=str(failure))
            self.epoch = 0
            return False
        self._warning.resolve()
        if answer.state != WORKER_STATE_ACTIVE:
            self.epoch = 0
            return False
        if self.epoch and answer.lease_epoch != self.epoch:
            # It was lost and taken again: another follower may have been there in between.
            self.epoch = 0
            return False
        self.epoch = answer.lease_epoch
        return True

    async def give_up(self) -> None:
        """Let another follower take over at once."""
        if not self.epoch:
            return
        self.epoch = 0
        request = ShutdownWorkerRequest(
            namespace=self._namespace,
            worker_instance_key=DOOR_KEY,
            session_id=self.session_id,
            reason="it has stopped in order",
        )
        try:
            await self._client.call(
                lambda endpoint: endpoint.liveness.ShutdownWorker, request, CALL_TIMEOUT_MS
            )
        except RpcFailed:
            pass  # the lease ends by itself
