"""Heartbeats of one attempt: that its handler is at work, and how far it has come.

A handler may say so as often as it likes. What it says is sent at most once in an interval, the newest details alone.
Everything here but `record` and `close` runs on the scheduler's thread.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import Any

from liveness.sdk.connection import Connection
from liveness.sdk.converter import Payload
from liveness.sdk.held_attempt import HeldAttempt
from liveness.sdk.rpc_failures import RpcFailed, RpcFailure
from liveness.sdk.session import WorkerSession
from liveness.sdk.values import duration_to_ms, id_to_proto
from liveness.v1.activity_pb2 import ActivityTask, RecordActivityHeartbeatRequest

INTERVAL_MS_MAX = 1_000
INTERVAL_MS_MIN = 20
HEARTBEATS_PER_LIMIT = 4
"""How many are sent in the time that the server waits for one."""

log = logging.getLogger("liveness.sdk")


class ActivityHeartbeats:
    def __init__(
        self,
        connection: Connection,
        session: WorkerSession,
        held_attempt: HeldAttempt,
        message: ActivityTask,
    ) -> None:
        self._connection = connection
        self._session = session
        self._held_attempt = held_attempt
        limit_ms = duration_to_ms(message.heartbeat_timeout)
        self._interval_ms = (
            max(min(limit_ms // HEARTBEATS_PER_LIMIT, INTERVAL_MS_MAX), INTERVAL_MS_MIN)
            if limit_ms
            else INTERVAL_MS_MAX
        )
        self._unsent: Payload | None = None
        """The newest details, until the server has them."""
        self._is_wanted = False
        self._is_under_way = False
        """A heartbeat is being sent, or the interval is not over."""
        self._is_closed = False

    def record(self, details: Payload | None) -> None:
        """Any thread may call this; it returns at once."""
        if details is not None:
            self._unsent = details
        self._connection.scheduler.call_soon(self._want)

    def close(self) -> Payload | None:
        """Send no more, because the attempt ends. Returns details that the server does not have."""
        self._is_closed = True
        return self._unsent

    def _want(self) -> None:
        self._is_wanted = True
        if not self._is_under_way:
            self._send()

    def _send(self) -> None:
        self._is_under_way = False
        if not self._is_wanted or self._is_closed or self._held_attempt.lost.is_set():
            return
        self._is_wanted, self._is_under_way = False, True
        details, ref = self._unsent, self._held_attempt.ref
        request = RecordActivityHeartbeatRequest(
            namespace=self._session.namespace,
            id=id_to_proto(ref),
            worker_instance_key=self._session.key,
            lease_epoch=self._held_attempt.epoch,
            attempt=ref.attempt,
            details=None if details is None else details.data,
            details_encoding="" if details is None else details.encoding,
            session_id=self._session.session_id,
        )
        sent_ms = self._connection.scheduler.now_ms()
        call = self._connection.call(
            lambda endpoint: endpoint.activities.RecordActivityHeartbeat,
            request,
            should_retry=self._should_retry,
        )
        call.add_done_callback(
            lambda done: self._connection.scheduler.call_soon(lambda: self._on_done(done, details, sent_ms))
        )

    def _should_retry(self, rpc_failure: RpcFailure) -> bool:
        return rpc_failure.is_retryable and not self._is_closed and not self._held_attempt.lost.is_set()

    def _on_done(self, call: Future[Any], details: Payload | None, sent_ms: int) -> None:
        error = call.exception()
        if isinstance(error, RpcFailed) and not self._is_closed:
            rpc_failure = error.rpc_failure
            if rpc_failure.reason == "FENCED_OFF":
                self._held_attempt.lost.set(f"the server has taken it back: {rpc_failure.message}")
            elif rpc_failure.reason == "UNIMPLEMENTED" or rpc_failure.code.name == "UNIMPLEMENTED":
                log.debug("the server keeps no heartbeats of activities, because it is older")
            else:
                log.warning("a heartbeat of %s was refused: %s", self._held_attempt.ref, rpc_failure)
        if error is None and self._unsent is details:
            self._unsent = None
        self._connection.scheduler.call_at(sent_ms + self._interval_ms, self._send)
