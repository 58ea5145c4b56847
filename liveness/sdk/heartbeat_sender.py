"""Send the heartbeats of all workers of a process on one channel, in as few calls as possible.

Each namespace has at most one pending call. When a heartbeat is due, the call also carries the heartbeats that would be
due a little later. Everything here runs on the scheduler's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random
from typing import Any, Protocol, TypeAlias

import grpc

from liveness.sdk import rpc_failures, traces
from liveness.sdk.failover import ServerEndpoint, ServerEndpoints
from liveness.sdk.heartbeat_state import HeartbeatOutcome, HeartbeatState
from liveness.sdk.rpc_failures import RpcFailure
from liveness.sdk.scheduler import Action, SchedulerThread, Timer
from liveness.v1.service_pb2 import RecordWorkerHeartbeatsRequest, RecordWorkerHeartbeatsResponse

BATCH_HEARTBEATS_MAX = 1_000
BATCH_BYTES_MAX = 3 * 1024 * 1024

log = logging.getLogger("liveness.sdk")

Reply: TypeAlias = RpcFailure | RecordWorkerHeartbeatsResponse.Item


class HeartbeatSource(Protocol):
    """The part of a worker session that the heartbeat sender uses."""

    namespace: str
    heartbeat_state: HeartbeatState

    def apply_outcome(self, outcome: HeartbeatOutcome) -> None: ...


class _NamespaceBatch:
    """The workers of one namespace."""

    def __init__(self) -> None:
        self.sessions: dict[int, HeartbeatSource] = {}
        self.call: Any | None = None
        self.endpoint: ServerEndpoint | None = None
        """The endpoint of the pending call."""
        self.failures = 0
        """Consecutive calls in which no heartbeat was answered."""
        self.is_away = False
        """The log tells that heartbeats are not answered."""
        self.timer: Timer | None = None
        self.token_reloaded = False
        """The token was read again, and no call has been answered since."""


class HeartbeatSender:
    def __init__(
        self,
        scheduler: SchedulerThread,
        endpoints: ServerEndpoints,
        random: Random,
        reload_token: Callable[[Action], bool] = lambda _: False,
    ) -> None:
        """`reload_token(then)` reads the token again and then runs `then`; it returns False if there is no token."""
        self._reload_token = reload_token
        self._scheduler = scheduler
        self._endpoints = endpoints
        self._random = random
        self._batches: dict[str, _NamespaceBatch] = {}

    def join(self, session: HeartbeatSource) -> None:
        self._batches.setdefault(session.namespace, _NamespaceBatch()).sessions[id(session)] = session
        self.schedule(session.namespace)

    def leave(self, session: HeartbeatSource) -> None:
        batch = self._batches.get(session.namespace)
        if batch is not None:
            batch.sessions.pop(id(session), None)

    def on_failover(self) -> None:
        """Send all heartbeats to the new node. If the old node is gone, the disconnect grace of the workers on its stream
        may have begun, so all heartbeats are due. A pending call is repeated, because the old node may never answer."""
        now_ms = self._scheduler.now_ms()
        for namespace, batch in self._batches.items():
            for session in batch.sessions.values():
                session.heartbeat_state.send_by(now_ms)
            if batch.call is not None and batch.endpoint is not self._endpoints.current:
                batch.call.cancel()
            self.schedule(namespace)

    def schedule(self, namespace: str) -> None:
        """Send now or set the timer, after a heartbeat may have become due earlier."""
        batch = self._batches.get(namespace)
        if batch is None or batch.call is not None:
            return  # `_on_reply` schedules again
        now_ms = self._scheduler.now_ms()
        due_ms = min(
            (
                due
                for session in batch.sessions.values()
                if (due := session.heartbeat_state.due_ms) is not None
            ),
            default=None,
        )
        if due_ms is None:
            return
        if due_ms <= now_ms:
            self._send(namespace, batch, now_ms)
        elif batch.timer is None or not batch.timer.is_pending or batch.timer.at_ms > due_ms:
            if batch.timer is not None:
                batch.timer.cancel()
            batch.timer = self._scheduler.call_at(due_ms, lambda: self.schedule(namespace))

    def _send(self, namespace: str, batch: _NamespaceBatch, now_ms: int) -> None:
        ready = [
            (earliest_ms, session)
            for session in batch.sessions.values()
            if (earliest_ms := session.heartbeat_state.earliest_ms) is not None and earliest_ms <= now_ms
        ]
        ready.sort(key=lambda pair: pair[0])
        request = RecordWorkerHeartbeatsRequest(namespace=namespace)
        included: list[HeartbeatSource] = []
        size = 0
        for _, session in ready[:BATCH_HEARTBEATS_MAX]:
            if size > BATCH_BYTES_MAX:
                break  # one more heartbeat is far smaller than the rest of the server's limit
            message = session.heartbeat_state.send(now_ms)
            size += message.ByteSize()
            request.heartbeats.append(message)
            included.append(session)
        timeout_ms = min(session.heartbeat_state.call_timeout_ms for session in included)
        heartbeat_states = [session.heartbeat_state for session in included]
        call_span = traces.start_call(request, namespace=namespace, heartbeats=len(included))

        def start(endpoint: ServerEndpoint) -> Any:
            return endpoint.liveness.RecordWorkerHeartbeats.future(
                request,
                timeout=timeout_ms / 1_000,
                metadata=None if call_span is None else call_span.metadata,
            )

        batch.endpoint, call = self._endpoints.start_call(start)
        batch.call = call
        if call_span is not None:
            call.add_done_callback(call_span.on_done)
        call.add_done_callback(
            lambda done: self._scheduler.call_soon(
                lambda: self._on_reply(namespace, included, heartbeat_states, done)
            )
        )

    def _on_reply(
        self,
        namespace: str,
        included: list[HeartbeatSource],
        heartbeat_states: list[HeartbeatState],
        call: Any,
    ) -> None:
        batch = self._batches[namespace]
        if call.code() is grpc.StatusCode.UNAUTHENTICATED and not batch.token_reloaded:
            batch.token_reloaded = True
            # The call counts as pending until then, so that nothing is sent with the old token.
            if self._reload_token(lambda: self._send_again(namespace, included, heartbeat_states)):
                return
        batch.call = None
        if call.code() is grpc.StatusCode.OK:
            batch.token_reloaded = False
        replies = _parse_replies(call, len(included))
        retry_now = self._should_retry_now(batch, replies)
        for session, heartbeat_state, reply in zip(included, heartbeat_states, replies, strict=True):
            now_ms = self._scheduler.now_ms()
            if isinstance(reply, RpcFailure):
                if not reply.is_retryable:
                    log.debug("heartbeat of %s refused: %s", heartbeat_state.key, reply)
                outcome = heartbeat_state.handle_failure(
                    reply, now_ms, self._random.random(), retry_now=retry_now
                )
            else:
                outcome = heartbeat_state.handle_reply(reply.result, now_ms)
            if heartbeat_state is session.heartbeat_state:
                session.apply_outcome(outcome)
        self.schedule(namespace)

    def _send_again(
        self, namespace: str, included: list[HeartbeatSource], heartbeat_states: list[HeartbeatState]
    ) -> None:
        """Repeat the heartbeats as they were, with the token that has been read again."""
        self._batches[namespace].call = None
        rpc_failure = RpcFailure(grpc.StatusCode.UNAVAILABLE, message="the token was refused")
        for session, heartbeat_state in zip(included, heartbeat_states, strict=True):
            if heartbeat_state is session.heartbeat_state:
                heartbeat_state.handle_failure(
                    rpc_failure, self._scheduler.now_ms(), self._random.random(), retry_now=True
                )
        self.schedule(namespace)

    def _should_retry_now(self, batch: _NamespaceBatch, replies: list[Reply]) -> bool:
        """Whether to send the same heartbeats again at once, to another node."""
        refused = [reply for reply in replies if isinstance(reply, RpcFailure) and reply.is_retryable]
        assert batch.endpoint is not None
        if len(refused) < len(replies):
            batch.failures = 0
            self._endpoints.mark_success(batch.endpoint)
            if batch.is_away:
                batch.is_away = False
                log.info("the server is back: %s answers heartbeats", batch.endpoint.address)
            return False
        batch.failures += 1
        rpc_failure = next((failure for failure in refused if failure.should_fail_over), refused[0])
        retry_now = self._endpoints.report_failure(batch.endpoint, rpc_failure, batch.failures)
        if not (retry_now or batch.is_away):
            batch.is_away = True
            log.warning(
                "the server is away: %s does not answer heartbeats, which are sent again until it does; work goes on until "
                "the leases end: %s",
                batch.endpoint.address,
                rpc_failure,
            )
        return retry_now


def _parse_replies(call: Any, expected: int) -> list[Reply]:
    """One reply per heartbeat; the failure of the call counts for each of them."""
    if call.code() is not grpc.StatusCode.OK:
        return [rpc_failures.failure_of_call(call)] * expected
    response: RecordWorkerHeartbeatsResponse = call.result()
    if len(response.items) != expected:
        message = f"{len(response.items)} answers to {expected} heartbeats"
        return [RpcFailure(grpc.StatusCode.INTERNAL, message=message)] * expected
    return [
        rpc_failures.failure_of_status(item.status) if item.HasField("status") else item
        for item in response.items
    ]
