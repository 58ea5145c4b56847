"""Register a program as a component, and keep it registered:

    from liveness.sdk import Registration

    Registration("localhost:7400", "worker_pool:images", uri="http://host:8000", capacity=16).start()

The SDK's thread sends the heartbeats from then on, registers again if it must, and survives restarts of the server. `with` and
`async with` start it and say goodbye at the end.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from threading import Event
from types import TracebackType
from typing import Any, Literal, Self

import grpc
from google.protobuf.message import Message

from liveness.client_credentials import TLS, Token
from liveness.sdk.addresses import Addresses, find_addresses, find_namespace
from liveness.sdk.connection import Connection, SelectMethod, credentials_for, uncancellable_future
from liveness.sdk.errors import LivenessSdkError, ServerAway
from liveness.sdk.rpc_failures import RpcFailed, RpcFailure, worker_error
from liveness.sdk.scheduler import Timer
from liveness.sdk.values import to_duration
from liveness.v1 import registry_pb2
from liveness.v1 import registry_service_pb2 as pb

log = logging.getLogger("liveness.sdk.registration")

BACKOFF_MS = (200, 15_000)
REFUSED_MS = 300_000
"""The next try after a refusal that lasts. Denied calls are counted and recorded by the server, so there are few."""
LASTING_CODES = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
)
GOODBYE_SECONDS = 3.0
LAST_HEARTBEATS = 5
"""How often what was counted is sent before the goodbye, if it gets no answer."""
REGISTER_AGAIN = frozenset({"REGISTRY_ENTRY_NOT_FOUND", "SESSION_SUPERSEDED", "SESSION_NOT_CURRENT"})

OnReplica = Literal["show", "refuse", "number"]


class Registration:
    def __init__(
        self,
        address: Addresses | None,
        key: str,
        *,
        namespace: str | None = None,
        uri: str = "",
        status: str = "",
        capacity: int | None = None,
        labels: Mapping[str, str] | None = None,
        capabilities: Sequence[str] = (),
        runtime: Mapping[str, Any] | None = None,
        expected_interval: float = 15.0,
        lease: float | None = None,
        task_queue: str = "",
        on_replica: OnReplica = "show",
        session: str = "",
        tls: bool | TLS | None = None,
        token: Token | None = None,
    ) -> None:
        """`key`: KIND:NAME, such as broker:nats-1. `runtime`: facts about how it runs, as JSON; at most 4 KiB.
        `expected_interval`: seconds between heartbeats; the lease is three of them unless `lease` says otherwise. `on_replica`: what
        happens if another process has the name: this one is shown as a replica, is refused, or gets a number. `session`: names this process, if a process that is started again shall
        go on as the same one; empty: each `Registration` is a process of its own. `address`, `namespace`, `tls`, `token`: as of `Client`."""
        namespace = find_namespace(namespace)
        addresses = find_addresses(address)
        self._credentials = credentials_for(addresses, tls, token)
        self._addresses = addresses
        host, process = socket.gethostname(), str(os.getpid())
        self._request = pb.RegisterRequest(
            namespace=namespace,
            worker_instance_key=key,
            # A process id is used again, above all in containers.
            session_id=session or f"{host[:150]}:{process}:{os.urandom(4).hex()}",
            uri=uri,
            status=status,
            labels=dict(labels or {}),
            capabilities=capabilities,
            capacity=capacity,
            runtime_json=_runtime_json(runtime),
            expected_interval=to_duration(expected_interval),
            lease_duration=None if lease is None else to_duration(lease),
            host_name=host,
            process_id=process,
            task_queue=task_queue,
            on_replica=registry_pb2.ReplicaPolicy.Value(f"REPLICA_POLICY_{on_replica.upper()}"),
        )
        self._beat = pb.HeartbeatRequest(
            namespace=namespace, worker_instance_key=key, session_id=self._request.session_id
        )
        self._sent: pb.HeartbeatRequest | None = None
        """A heartbeat whose outcome is unknown. It is sent again as it was, so that its counters are added once."""
        self._sequence = 0
        self._connection: Connection | None = None
        self._first: Future[None] = uncancellable_future()
        """Done when the first registration was answered."""
        self._timer: Timer | None = None
        self._is_calling = False
        self._is_registered = False
        self._should_register = True
        self._raises_first_failure = True
        self._failures = 0
        self._last_failure: RpcFailure | None = None
        self._is_stopping = False
        self._reason = ""
        self._last_heartbeats_left = LAST_HEARTBEATS
        self._stopped = Event()
        self.is_replica = False
        """Whether another process has the name. It is tried again with every heartbeat."""

    @property
    def key(self) -> str:
        """KIND:NAME as registered; with a number if it asked for one and another process has the name."""
        return self._beat.worker_instance_key

    # -- start and stop

    def start(self, timeout: float = 10.0) -> Self:
        """Register, and return when the server has answered. Raises if it refuses, or does not answer in time. Call it once."""
        self._begin()
        try:
            self._first.result(timeout)
        except FutureTimeout:
            error = self._away()
            self.stop(timeout=0)
            raise error from None
        except LivenessSdkError:
            self.stop(timeout=0)
            raise
        return self

    def start_soon(self) -> Self:
        """Register in the background, and never raise: failures are logged once, and tried again."""
        self._raises_first_failure = False
        self._begin()
        return self

    def stop(self, reason: str = "", timeout: float = GOODBYE_SECONDS) -> None:
        """Say goodbye, and wait for it for this many seconds. Without a goodbye the lease ends by itself."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        connection.scheduler.call_soon(lambda: self._say_goodbye(connection, reason))
        self._stopped.wait(timeout)
        connection.release()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    # -- what it says

    def set(
        self,
        *,
        status: str | None = None,
        uri: str | None = None,
        capacity: int | None = None,
        labels: Mapping[str, str] | None = None,
        runtime: Mapping[str, Any] | None = None,
    ) -> None:
        """Say something else of the component, at once. What is not given stays."""

        def change() -> None:
            request = self._request
            if status is not None:
                request.status = self._beat.status = status
            if uri is not None:
                request.uri = uri
            if capacity is not None:
                request.capacity = capacity
            if labels is not None:
                request.labels.clear()
                request.labels.update(labels)
            if runtime is not None:
                request.runtime_json = runtime_json
            self._should_register = True

        runtime_json = _runtime_json(runtime)
        self._soon(change)

    def count(self, successes: int = 0, errors: int = 0, last_error: str = "") -> None:
        """Add to the counters. They go with the next heartbeat, and are added exactly once."""

        def add() -> None:
            self._beat.successes += successes
            self._beat.errors += errors
            self._beat.last_error = last_error or self._beat.last_error

        self._soon(add, at_once=False)

    def _soon(self, change: Callable[[], None], *, at_once: bool = True) -> None:
        connection = self._connection
        if connection is None:
            change()
            return

        def run() -> None:
            change()
            if at_once and self._is_registered:
                self._next(connection)

        connection.scheduler.call_soon(run)

    # -- on the SDK's thread

    def _begin(self) -> None:
        connection = self._connection = Connection.acquire(self._addresses, self._credentials)
        connection.scheduler.call_soon(lambda: self._next(connection))

    def _next(self, connection: Connection) -> None:
        """Make the next call, unless one is under way: it makes the next when it is done."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_calling or self._is_stopping:
            return
        self._is_calling = True
        if self._should_register:
            self._should_register = False
            self._call(
                connection, lambda endpoint: endpoint.registry.Register, self._request, self._registered
            )
        else:
            self._send_heartbeat(connection)

    def _send_heartbeat(self, connection: Connection) -> None:
        if self._sent is None:
            self._sequence += 1
            self._sent = pb.HeartbeatRequest()
            self._sent.CopyFrom(self._beat)
            self._sent.sequence = self._sequence
            self._beat.successes = self._beat.errors = 0
            self._beat.last_error = ""
        self._call(connection, lambda endpoint: endpoint.registry.Heartbeat, self._sent, self._heard)

    def _call(
        self,
        connection: Connection,
        select_method: SelectMethod,
        request: Message,
        on_answer: Callable[[Any], None],
    ) -> None:
        def on_done(future: Future[Any]) -> None:
            self._is_calling = False
            try:
                answer = future.result()
            except RpcFailed as error:
                self._should_register |= isinstance(request, pb.RegisterRequest)
                self._failed(connection, error.rpc_failure)
                return
            if self._failures:
                log.info("%s is registered again", self.key)
            self._failures, self._last_failure, self._is_registered = 0, None, True
            on_answer(answer)
            if not self._first.done():
                self._first.set_result(None)
            duration = answer.next_heartbeat_after
            self._schedule(
                connection,
                0 if self._should_register else duration.seconds * 1_000 + duration.nanos // 1_000_000,
            )

        connection.call(select_method, request).add_done_callback(on_done)

    def _registered(self, response: pb.RegisterResponse) -> None:
        # From now on under the name that it got, which is its own.
        key = response.entry.worker_instance_key
        self._request.worker_instance_key = self._beat.worker_instance_key = key
        self._request.on_replica = registry_pb2.REPLICA_POLICY_SHOW
        self._beat.session_id = self._request.session_id
        self._note_replica(is_replica=response.is_replica, entry=response.entry)

    def _heard(self, response: pb.HeartbeatResponse) -> None:
        if not response.is_replica:
            # That of a replica adds nothing. It is sent again until this process has the name.
            self._sent = None
        self._note_replica(is_replica=response.is_replica, entry=response.entry)

    def _note_replica(self, *, is_replica: bool, entry: registry_pb2.RegistryEntry) -> None:
        if is_replica and not self.is_replica:
            owner = f"{entry.host_name}:{entry.process_id}"
            log.warning("%s belongs to %s; this process is shown as a replica of it", self.key, owner)
        elif self.is_replica and not is_replica:
            log.info("%s belongs to this process now", self.key)
            self._should_register = True  # what is known of it is what the other process said
        self.is_replica = is_replica

    def _failed(self, connection: Connection, failure: RpcFailure) -> None:
        self._last_failure = failure
        if self._is_stopping:
            if not self._is_registered or not failure.is_retryable:
                self._deregister(connection)
                return
            self._timer = connection.scheduler.call_at(
                connection.scheduler.now_ms() + max(failure.retry_after_ms, BACKOFF_MS[0]),
                lambda: self._leave(connection),
            )
            return
        if failure.reason in REGISTER_AGAIN and self._is_registered:
            self._is_registered = False
            self._should_register = True
            self._schedule(connection, 0)
            return
        if not self._first.done() and not failure.is_retryable and self._raises_first_failure:
            self._is_stopping = True
            self._first.set_exception(self._error_of(failure))
            return
        if not self._failures:
            log.warning("%s cannot be registered, and is tried again: %s", self.key, failure)
        self._failures += 1
        wait_ms = min(BACKOFF_MS[0] * 2 ** min(self._failures, 10), BACKOFF_MS[1])
        if failure.code in LASTING_CODES:
            wait_ms = REFUSED_MS
        self._schedule(
            connection, max(failure.retry_after_ms, int(wait_ms * connection.random.uniform(0.5, 1)))
        )

    def _schedule(self, connection: Connection, wait_ms: int) -> None:
        if self._is_stopping:
            self._leave(connection)
            return
        scheduler = connection.scheduler
        self._timer = scheduler.call_at(scheduler.now_ms() + wait_ms, lambda: self._next(connection))

    def _say_goodbye(self, connection: Connection, reason: str) -> None:
        self._reason = reason
        if self._timer is not None:
            self._timer.cancel()
        if self._is_stopping:
            self._stopped.set()  # it was refused
            return
        self._is_stopping = True
        # A heartbeat that arrives after the goodbye would bring the component back.
        if not self._is_calling:
            self._leave(connection)

    def _leave(self, connection: Connection) -> None:
        """Say goodbye, after what was counted since the last heartbeat. That of a replica is not added."""
        beat = self._beat
        has_counted = self._sent is not None or beat.successes or beat.errors or beat.last_error
        if has_counted and self._is_registered and not self.is_replica and self._last_heartbeats_left:
            self._last_heartbeats_left -= 1
            self._is_calling = True
            self._send_heartbeat(connection)
            return
        self._deregister(connection)

    def _deregister(self, connection: Connection) -> None:
        if not self._is_registered:
            self._stopped.set()
            return
        request = pb.DeregisterRequest(
            namespace=self._request.namespace,
            worker_instance_key=self.key,
            session_id=self._request.session_id,
            reason=self._reason,
        )
        goodbye = connection.call(lambda endpoint: endpoint.registry.Deregister, request)
        goodbye.add_done_callback(lambda done: self._stopped.set())

    # -- errors

    def _away(self) -> ServerAway:
        detail = str(self._last_failure) if self._last_failure else "it did not answer in time."
        return ServerAway(address=",".join(self._addresses), detail=detail)

    def _error_of(self, failure: RpcFailure) -> LivenessSdkError:
        return worker_error(
            failure,
            "Register",
            address=",".join(self._addresses),
            namespace=self._request.namespace,
            worker=self._request.worker_instance_key,
        )


def _runtime_json(runtime: Mapping[str, Any] | None) -> str:
    return json.dumps(dict(runtime), separators=(",", ":"), allow_nan=False) if runtime else ""
