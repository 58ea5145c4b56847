"""Choose one of several server addresses, and fail over to the next.

All calls, polls and the stream use one address, the current one. A caller that finds the node gone, hanging or about to
stop reports it (`report_failure`), and from then on everything uses the next address. Nothing switches back while the
current node works.

Each caller counts its own consecutive failures. While there are addresses that it has not tried, it tries again at once;
after a whole round of failures it backs off as with a single address. So callers cannot push each other around in
circles: a caller that fails on every node slows down, even if the calls of others succeed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from threading import Lock
from typing import Any, TypeAlias, TypeVar

import grpc

from liveness.sdk.rpc_failures import RpcFailure
from liveness.v1.activity_pb2_grpc import ActivityServiceStub
from liveness.v1.admin_pb2_grpc import AdminServiceStub
from liveness.v1.component_metrics_service_pb2_grpc import ComponentMetricsServiceStub
from liveness.v1.component_service_pb2_grpc import ComponentServiceStub
from liveness.v1.progress_service_pb2_grpc import ProgressServiceStub
from liveness.v1.registry_service_pb2_grpc import RegistryServiceStub
from liveness.v1.schedule_service_pb2_grpc import ScheduleServiceStub
from liveness.v1.service_pb2_grpc import LivenessServiceStub

CHANNEL_OPTIONS = (
    # A server that restarts is back within a second, so the channel reconnects quickly.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    # A web proxy from the environment is rarely meant for gRPC, and would hide a missing server behind its own errors.
    ("grpc.enable_http_proxy", 0),
    # gRPC closes a connection that brings no answers. Without keepalive, a channel would wait a quarter of an hour for
    # a machine that vanished. The stream's pongs arrive more often than this interval, so gRPC sends its own pings only
    # when something is wrong, and the server never rejects them as too frequent.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    # Two connections of one process (in a test, say) must not share a TCP connection by accident.
    ("grpc.use_local_subchannel_pool", 1),
)

CONNECT_TIMEOUT_MS = 100
"""The minimum timeout of a connection attempt. gRPC allows later attempts more time."""
FAILOVER_CONNECT_TIMEOUT_MS = (200, 5_000)
"""The first and the longest timeout. A node that accepts and then stays silent must not use up the time needed to find
another one; but distant nodes need time to connect. So the timeout starts short and doubles with each round."""

log = logging.getLogger("liveness.sdk")

T = TypeVar("T")
OpenChannel: TypeAlias = Callable[[str, Sequence[tuple[str, Any]]], grpc.Channel]
"""Opens a channel, given an address and options."""


@dataclass(frozen=True, slots=True, eq=False)
class ServerEndpoint:
    """A channel to one address, from the failover to it until the failover away from it. Each new one resolves the name again."""

    address: str
    channel: grpc.Channel
    liveness: LivenessServiceStub
    activities: ActivityServiceStub
    admin: AdminServiceStub
    components: ComponentServiceStub
    metrics: ComponentMetricsServiceStub
    registry: RegistryServiceStub
    progress: ProgressServiceStub
    schedules: ScheduleServiceStub

    @classmethod
    def connect(
        cls, address: str, connect_timeout_ms: int, open_channel: OpenChannel = grpc.insecure_channel
    ) -> ServerEndpoint:
        """Open a lazy channel: it connects when it is first used."""
        options = (*CHANNEL_OPTIONS, ("grpc.min_reconnect_backoff_ms", connect_timeout_ms))
        channel = open_channel(address, options)
        return cls(
            address,
            channel,
            LivenessServiceStub(channel),
            ActivityServiceStub(channel),
            AdminServiceStub(channel),
            ComponentServiceStub(channel),
            ComponentMetricsServiceStub(channel),
            RegistryServiceStub(channel),
            ProgressServiceStub(channel),
            ScheduleServiceStub(channel),
        )


class ServerEndpoints:
    """Only the scheduler's thread may call `mark_success`, `report_failure`, `renew` and `close`; any thread may call the rest."""

    def __init__(
        self,
        addresses: Sequence[str],
        random: Random,
        on_abandoned: Callable[[ServerEndpoint], None],
        open_channel: OpenChannel = grpc.insecure_channel,
    ) -> None:
        """`on_abandoned` is called after each failover with the previous endpoint. Its calls still run until `close`."""
        # Each process has its own order: a fleet spreads over the nodes, and the workers of a dead node over the others.
        self._addresses = random.sample(addresses, len(addresses))
        self._current_index = 0
        self._failover_count = 0
        """Failovers since a call was last answered."""
        self._on_abandoned = on_abandoned
        self._open_channel = open_channel
        self._lock = Lock()
        self._abandoned_endpoints: set[ServerEndpoint] = set()
        self.current = self._open_endpoint()

    def __len__(self) -> int:
        return len(self._addresses)

    def start_call(self, start: Callable[[ServerEndpoint], T]) -> tuple[ServerEndpoint, T]:
        """Start a call on the current endpoint; no failover happens in between. `start` must not block."""
        with self._lock:
            return self.current, start(self.current)

    def mark_success(self, endpoint: ServerEndpoint) -> None:
        """Record that a call on `endpoint` was answered."""
        if endpoint is self.current:
            self._failover_count = 0

    @property
    def connect_timeout_ms(self) -> int:
        """The timeout for connecting to the current node."""
        if len(self) == 1:
            return CONNECT_TIMEOUT_MS
        first_ms, last_ms = FAILOVER_CONNECT_TIMEOUT_MS
        rounds = min(self._failover_count // len(self), last_ms.bit_length())
        return min(first_ms << rounds, last_ms)

    def report_failure(self, endpoint: ServerEndpoint, rpc_failure: RpcFailure, failures: int) -> bool:
        """Record a failed call, and fail over if the node cannot serve. `failures`: the caller's consecutive failures,
        this one included. Returns whether the caller may retry at once, on a node that it has not tried."""
        if rpc_failure.should_fail_over and endpoint is self.current and len(self) > 1:
            self._switch(rpc_failure)
        return endpoint is not self.current and failures < len(self)

    def renew(self) -> ServerEndpoint:
        """Open a channel with the current certificates to the same address. Returns the previous endpoint; its calls still
        run until `close`."""
        with self._lock:
            previous, self.current = self.current, self._open_endpoint()
            self._abandoned_endpoints.add(previous)
        return previous

    def close(self, endpoint: ServerEndpoint) -> None:
        """Close the channel. Its pending calls end as CANCELLED."""
        with self._lock:
            self._abandoned_endpoints.discard(endpoint)
            endpoint.channel.close()

    def close_all(self) -> None:
        for endpoint in (*self._abandoned_endpoints, self.current):
            self.close(endpoint)

    def _switch(self, rpc_failure: RpcFailure) -> None:
        self._current_index = (self._current_index + 1) % len(self)
        self._failover_count += 1
        with self._lock:
            abandoned, self.current = self.current, self._open_endpoint()
            self._abandoned_endpoints.add(abandoned)
        log.info("failing over from %s to %s: %s", abandoned.address, self.current.address, rpc_failure)
        self._on_abandoned(abandoned)

    def _open_endpoint(self) -> ServerEndpoint:
        address = self._addresses[self._current_index]
        return ServerEndpoint.connect(address, self.connect_timeout_ms, self._open_channel)
