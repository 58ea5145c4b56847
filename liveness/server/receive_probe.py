"""Calls this server through its own listeners, so that the node knows how far it has read what arrived there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import grpc
import structlog

from liveness.clock import wait_for_event
from liveness.cluster.peers import CHANNEL_OPTIONS
from liveness.config.settings import host_port
from liveness.engine.node import Node
from liveness.engine.observed_clock import PROBE_MS_MAX
from liveness.server.edge_listener import EdgeServer

logger = structlog.get_logger("liveness.receive_probe")

SERVICE_NAME = "liveness.internal.ReceiveProbe"
METHOD_NAME = "Receive"
PROBE_INTERVAL_MS = 500
PROBE_TIMEOUT_S = 10.0
"""After this time the probe is sent again, on the same connection."""
RETRY_MS = 100
UNREACHABLE_MS_MAX = 10_000
"""If the listener cannot be reached for this long, the node gives up measuring: it may be behind rules of a firewall,
and dead workers must be detected all the same."""


def register_receive_probe(server: grpc.aio.Server) -> None:
    """Serve probes: an empty answer to an empty message.

    The handler is generic, as those of heartbeats are, because all generic handlers share one queue in gRPC. A registered
    one, such as the health service's, has a queue of its own, in which a probe would overtake heartbeats.
    """
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(_answer)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE_NAME, {METHOD_NAME: handler}),)
    )
    if isinstance(server, EdgeServer):
        server.keep_behind_batches(f"/{SERVICE_NAME}/{METHOD_NAME}")


async def _answer(_request: bytes, _context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
    return b""


class Listener(NamedTuple):
    """A listener of this server, as the probe reaches it."""

    address: str
    connect: Callable[..., Any]
    options: tuple[tuple[str, Any], ...] = ()
    certificate: Callable[[], object] = lambda: None
    """Returns another object when `connect` must be called again, because the server's certificate was replaced."""


class ReceiveProbe:
    def __init__(self, listeners: Sequence[Listener], node: Node) -> None:
        """`listeners`: the public one, and that of the cluster, where forwarded heartbeats arrive. Each has a queue of its own
        in gRPC, so a probe counts as answered when all of them have answered."""
        self._listeners = listeners
        self._address = ", ".join(_own_address(listener.address) for listener in listeners)
        self._node = node
        self._unreachable_since_ms: int | None = None

    async def run(self) -> None:
        self._node.receive_progress.start_measuring()
        while not self._node.listening.is_stopped:
            await self._run_on_one_channel_each()

    def _certificates(self) -> list[object]:
        return [listener.certificate() for listener in self._listeners]

    async def _run_on_one_channel_each(self) -> None:
        """Return when the server stops, or one of its certificates was replaced."""
        node, certificates = self._node, self._certificates()
        channels = [
            listener.connect(_own_address(listener.address), options=(*CHANNEL_OPTIONS, *listener.options))
            for listener in self._listeners
        ]
        receives = [channel.unary_unary(f"/{SERVICE_NAME}/{METHOD_NAME}") for channel in channels]
        try:
            while not node.listening.is_stopped and self._certificates() == certificates:
                wait_ms = await self._probe(receives)
                if wait_ms:
                    await wait_for_event(node.receive_progress.probe_wanted, node.clock, wait_ms)
        finally:
            for channel in channels:
                await channel.close()

    async def _probe(self, receives: Sequence[Callable[..., Any]]) -> int:
        """Send a probe. Returns how long to wait before the next one if no lease waits for it."""
        node = self._node
        node.receive_progress.probe_sent()
        try:
            calls = [receive(b"", timeout=PROBE_TIMEOUT_S) for receive in receives]
            for call in calls:
                await call
        except grpc.aio.AioRpcError as error:
            node.receive_progress.probe_failed()
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                self._on_unreachable(error)
                await node.clock.sleep(RETRY_MS)
            return 0
        if self._unreachable_since_ms is not None:
            self._on_reachable()
        return PROBE_INTERVAL_MS if node.probe_answered() <= PROBE_MS_MAX else 0

    def _on_unreachable(self, error: grpc.aio.AioRpcError) -> None:
        node, now_ms = self._node, self._node.clock.monotonic_ms()
        if self._unreachable_since_ms is None:
            self._unreachable_since_ms = now_ms
        if now_ms - self._unreachable_since_ms < UNREACHABLE_MS_MAX or node.listening.is_stopped:
            return
        if node.receive_progress.is_measuring:
            logger.error(
                "this server cannot reach its own listener, so leases may end although heartbeats wait in its sockets; "
                "allow connections from this machine to the listening address",
                address=self._address,
                why=error.details(),
            )
            node.receive_progress.stop_measuring()

    def _on_reachable(self) -> None:
        self._unreachable_since_ms = None
        if not self._node.receive_progress.is_measuring:
            logger.info("this server reaches its own listener again", address=self._address)
            self._node.receive_progress.start_measuring()


def _own_address(address: str) -> str:
    """A server that listens on all interfaces reaches itself over loopback."""
    parsed = host_port(address)
    if parsed is None or parsed.host not in ("0.0.0.0", "::"):
        return address
    return f"127.0.0.1:{parsed.port}" if parsed.host == "0.0.0.0" else f"[::1]:{parsed.port}"
