"""Follow the event log: a thread reads the server's stream, and goes on where it broke."""

from __future__ import annotations

from concurrent.futures import Future
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

import grpc

from liveness.sdk import rpc_failures
from liveness.sdk.connection import Connection, uncancellable_future
from liveness.sdk.errors import LivenessSdkError, ServerAway
from liveness.sdk.heartbeat_state import BACKOFF_MS
from liveness.sdk.rpc_failures import RpcFailed, RpcFailure, worker_error
from liveness.sdk.worker_info import LivenessEvent
from liveness.v1.service_pb2 import WatchEventsRequest

ENDED = RpcFailure(grpc.StatusCode.UNAVAILABLE, message="the server ended the stream")


class EventFeed:
    """Events in order, each once. A quiet feed notices that its server is gone by the channel's keepalive."""

    def __init__(self, connection: Connection, request: WatchEventsRequest, timeout_ms: int) -> None:
        """`timeout_ms`: for how long a first answer is tried for. Later, a missing server is waited for."""
        self._connection = connection
        self._request = request
        self._timeout_ms = timeout_ms
        self._wanted: SimpleQueue[Future[list[LivenessEvent]] | None] = SimpleQueue()
        self._lock = Lock()
        self._call: Any = None
        self._closed = False
        self._failures = 0
        self._has_begun = False
        self._started_ms = connection.clock.monotonic_ms()
        Thread(target=self._run, name="liveness-events", daemon=True).start()

    def next_events(self) -> Future[list[LivenessEvent]]:
        """The next events, at least one. Fails with the SDK's error if the feed cannot go on."""
        wanted: Future[list[LivenessEvent]] = uncancellable_future()
        self._wanted.put(wanted)
        return wanted

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._call is not None:
                self._call.cancel()
        self._wanted.put(None)

    # -- on the reading thread

    def _run(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            try:
                wanted.set_result(self._read())
            except RpcFailed as error:
                wanted.set_exception(self._error(error.rpc_failure))
                return

    def _read(self) -> list[LivenessEvent]:
        while True:
            if self._call is None:
                self._open()
            try:
                response = next(self._call, None)
            except grpc.RpcError:
                self._retry(rpc_failures.failure_of_call(self._call))
                continue
            if response is None:
                self._retry(ENDED)
                continue
            self._has_begun, self._failures = True, 0
            self._request.resume_token = response.resume_token
            if response.events:
                return list(map(LivenessEvent.from_proto, response.events))

    def _open(self) -> None:
        with self._lock:
            if self._closed:
                raise RpcFailed(RpcFailure(grpc.StatusCode.CANCELLED, message="the program closed the feed"))
            self._endpoint, self._call = self._connection.endpoints.start_call(
                lambda endpoint: endpoint.liveness.WatchEvents(self._request)
            )

    def _retry(self, rpc_failure: RpcFailure) -> None:
        """Wait before the next stream. Raises RpcFailed if there shall be none."""
        self._call = None
        is_too_late = (
            not self._has_begun
            and self._connection.clock.monotonic_ms() - self._started_ms >= self._timeout_ms
        )
        if self._closed or is_too_late or not rpc_failure.is_retryable:
            raise RpcFailed(rpc_failure)
        self._failures += 1
        failures, endpoint = self._failures, self._endpoint
        switched: Future[bool] = uncancellable_future()
        self._connection.scheduler.call_soon(
            lambda: switched.set_result(
                self._connection.endpoints.report_failure(endpoint, rpc_failure, failures)
            )
        )
        if not switched.result():
            first_ms, last_ms = BACKOFF_MS
            self._connection.sleep(min(first_ms << min(failures, 10), last_ms)).result()

    def _error(self, rpc_failure: RpcFailure) -> LivenessSdkError:
        address, namespace = self._connection.address, self._request.namespace
        if rpc_failure.should_fail_over:
            return ServerAway(address=address, detail=str(rpc_failure))
        return worker_error(rpc_failure, "WatchEvents", address=address, namespace=namespace, worker="")
