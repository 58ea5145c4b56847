"""The connection to a cluster: one per process, list of addresses and credentials, shared by all its workers and clients."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from math import inf
from random import Random
from threading import Lock
from typing import Any, ClassVar, Protocol, TypeAlias

import grpc
from google.protobuf.message import Message

from liveness.client_credentials import (
    TLS,
    Credentials,
    CredentialsError,
    LoadedCredentials,
    Token,
    resolve_credentials,
)
from liveness.clock import SystemClock
from liveness.sdk import rpc_failures, traces
from liveness.sdk.addresses import format_addresses
from liveness.sdk.attach_stream import AttachStream
from liveness.sdk.credentials_watch import CredentialsWatch
from liveness.sdk.errors import InvalidCredentials
from liveness.sdk.failover import ServerEndpoint, ServerEndpoints
from liveness.sdk.heartbeat_sender import HeartbeatSender
from liveness.sdk.heartbeat_state import BACKOFF_MS
from liveness.sdk.rpc_failures import RpcFailed, RpcFailure
from liveness.sdk.scheduler import SchedulerThread

CALL_TIMEOUT_SECONDS = 5.0
LAST_TRY_MS = 20
"""No try starts with less time than this."""
RENEWED_LINGER_MS = 30_000
"""How long the channel with the previous certificates stays open: longer than any poll lasts."""
LINGER_MS = 1_000
"""How long the channel to the previous node stays open after a failover. A node that stops in order still answers pending
calls and polls, and announces that it closes its stream; a node that hangs never does."""


class UnaryMethod(Protocol):
    def future(
        self,
        request: Any,
        timeout: float | None = None,
        metadata: tuple[tuple[str, str], ...] | None = None,
        *,
        wait_for_ready: bool | None = None,
    ) -> Any: ...


SelectMethod: TypeAlias = Callable[[ServerEndpoint], UnaryMethod]
"""Selects the method to call on the current node."""


def credentials_for(addresses: tuple[str, ...], tls: bool | TLS | None, token: Token | None) -> Credentials:
    """The credentials that a program names, and else the environment. Raises InvalidCredentials."""
    try:
        credentials = resolve_credentials(tls, token)
        credentials.check_addresses(addresses)
    except CredentialsError as error:
        raise InvalidCredentials(detail=str(error)) from None
    return credentials


def uncancellable_future() -> Future[Any]:
    """A future that a waiting caller cannot cancel: only its creator completes it."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


class Connection:
    """Created by `Connection.acquire(addresses)`; each user calls `release` when done."""

    _shared: ClassVar[dict[tuple[object, ...], Connection]] = {}
    _lock: ClassVar[Lock] = Lock()

    def __init__(
        self, addresses: tuple[str, ...], shared_key: tuple[object, ...], credentials: LoadedCredentials
    ) -> None:
        self.address = format_addresses(addresses)
        self._shared_key = shared_key
        self.clock = SystemClock()
        self.random = Random()
        self.endpoints = ServerEndpoints(
            addresses, self.random, self._on_endpoint_left, credentials.open_channel
        )
        self.scheduler = SchedulerThread(self.clock, "liveness-sdk", self._on_thread_failure)
        self.credentials_watch = CredentialsWatch(credentials, self.scheduler, self._renew_channel)
        self.heartbeat_sender = HeartbeatSender(
            self.scheduler, self.endpoints, self.random, self.credentials_watch.reload_token
        )
        self.stream = AttachStream(self.scheduler, self.endpoints, self.random)
        self.on_thread_failure: dict[int, Callable[[], None]] = {}
        self._user_count = 0
        self._pending_calls: set[Future[Any]] = set()
        self.scheduler.start()
        self.credentials_watch.start()

    @classmethod
    def acquire(cls, addresses: tuple[str, ...], credentials: Credentials | None = None) -> Connection:
        """Raises InvalidCredentials if the credentials cannot be read."""
        credentials = credentials or Credentials()
        shared_key = os.getpid(), addresses, credentials.shared_key
        with cls._lock:
            connection = cls._shared.get(shared_key)
            if connection is not None:
                connection._user_count += 1
                return connection
        try:
            loaded = LoadedCredentials(credentials)  # without the lock, because this may take a while
        except CredentialsError as error:
            raise InvalidCredentials(detail=str(error)) from None
        with cls._lock:
            connection = cls._shared.get(shared_key)
            if connection is None:
                connection = cls._shared[shared_key] = cls(addresses, shared_key, loaded)
            connection._user_count += 1
            return connection

    def release(self) -> None:
        with self._lock:
            self._user_count -= 1
            if self._user_count:
                return
            self._shared.pop(self._shared_key, None)
        self.credentials_watch.stop()
        self.scheduler.call_soon(self.stream.close)
        self.scheduler.stop()
        self.endpoints.close_all()
        self._fail_pending_calls("the connection was closed")

    def call(
        self,
        select_method: SelectMethod,
        request: Message,
        *,
        should_retry: Callable[[RpcFailure], bool] = lambda _: False,
        timeout_s: float = CALL_TIMEOUT_SECONDS,
        deadline_ms: int | None = None,
        wait_for_ready: bool = False,
    ) -> Future[Any]:
        """Make a unary call, and repeat it after each failure for which `should_retry` returns True. Fails with `RpcFailed`.

        `timeout_s`: for each try. `deadline_ms`: for all tries together, on the connection's clock; no try goes on beyond
        it, and tries are made until it."""
        outcome = uncancellable_future()
        self._pending_calls.add(outcome)
        outcome.add_done_callback(self._pending_calls.discard)
        wait_ms = BACKOFF_MS[0]
        failures = 0
        token_reloaded = False
        parent_context = traces.current_span_context()

        def time_left_ms() -> float:
            return inf if deadline_ms is None else deadline_ms - self.clock.monotonic_ms()

        def attempt() -> None:
            call_span = None if parent_context is None else traces.start_call(request, parent_context)

            def start(endpoint: ServerEndpoint) -> Any:
                return select_method(endpoint).future(
                    request,
                    timeout=min(timeout_s, max(time_left_ms(), 1) / 1_000),
                    metadata=None if call_span is None else call_span.metadata,
                    wait_for_ready=wait_for_ready,
                )

            endpoint, call = self.endpoints.start_call(start)
            if call_span is not None:
                call.add_done_callback(call_span.on_done)
            call.add_done_callback(lambda done: self.scheduler.call_soon(lambda: on_done(endpoint, done)))

        def on_done(endpoint: ServerEndpoint, call: Any) -> None:
            nonlocal wait_ms, failures, token_reloaded
            if call.code() is grpc.StatusCode.OK:
                self.endpoints.mark_success(endpoint)
                outcome.set_result(call.result())
                return
            rpc_failure = rpc_failures.failure_of_call(call)
            failures += 1
            retry_now = self.endpoints.report_failure(endpoint, rpc_failure, failures)
            left_ms = time_left_ms()
            if rpc_failure.code is grpc.StatusCode.UNAUTHENTICATED and not token_reloaded:
                token_reloaded = True
                if left_ms > LAST_TRY_MS and self.credentials_watch.reload_token(attempt):
                    return
            is_too_late = left_ms <= max(LAST_TRY_MS, rpc_failure.retry_after_ms)
            if is_too_late or not should_retry(rpc_failure):
                outcome.set_exception(RpcFailed(rpc_failure))
                return
            if retry_now:
                attempt()
                return
            backoff_ms = min(wait_ms * self.random.uniform(0.5, 1), left_ms / 2)
            pause_ms = max(rpc_failure.retry_after_ms, int(backoff_ms))
            wait_ms = min(wait_ms * 2, BACKOFF_MS[1])
            self.scheduler.call_at(self.scheduler.now_ms() + pause_ms, attempt)

        attempt()
        return outcome

    def sleep(self, ms: float) -> Future[None]:
        """A future that completes after this time, and fails with `RpcFailed` if the connection is closed before."""
        outcome = uncancellable_future()
        self._pending_calls.add(outcome)
        outcome.add_done_callback(self._pending_calls.discard)

        def wake() -> None:
            if not outcome.done():
                outcome.set_result(None)

        def start() -> None:
            self.scheduler.call_at(self.scheduler.now_ms() + int(ms), wake)

        self.scheduler.call_soon(start)
        return outcome

    def call_timeout_s(self, budget_s: float) -> float:
        """The timeout for a call to one node, which leaves time for the other nodes within `budget_s`."""
        return (
            CALL_TIMEOUT_SECONDS
            if len(self.endpoints) == 1
            else min(CALL_TIMEOUT_SECONDS, budget_s / len(self.endpoints))
        )

    def _on_endpoint_left(self, endpoint: ServerEndpoint) -> None:
        self.scheduler.call_soon(self.heartbeat_sender.on_failover)
        self.scheduler.call_at(self.scheduler.now_ms() + LINGER_MS, lambda: self.endpoints.close(endpoint))

    def _renew_channel(self) -> None:
        """The certificates have changed. Calls on the previous channel go on; new ones use the new certificates."""
        previous = self.endpoints.renew()
        self.scheduler.call_at(
            self.scheduler.now_ms() + RENEWED_LINGER_MS, lambda: self.endpoints.close(previous)
        )

    def _on_thread_failure(self) -> None:
        for callback in list(self.on_thread_failure.values()):
            callback()
        self._fail_pending_calls("the SDK's own thread has failed")

    def _fail_pending_calls(self, message: str) -> None:
        """Fail all pending calls, because no reply can arrive any more."""
        for outcome in list(self._pending_calls):
            outcome.set_exception(RpcFailed(RpcFailure(grpc.StatusCode.CANCELLED, message=message)))
