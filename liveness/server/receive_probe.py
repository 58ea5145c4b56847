"""Calls this server through its own listener, so that the node knows how far it has read what arrived there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import structlog

from liveness.clock import wait_for_event
from liveness.cluster.peers import CHANNEL_OPTIONS
from liveness.config.settings import host_port
from liveness.engine.node import Node
from liveness.engine.observed_clock import PROBE_MS_MAX

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


async def _answer(_request: bytes, _context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
    return b""


class ReceiveProbe:
    def __init__(
        self,
        connect: Callable[..., Any],
        address: str,
        node: Node,
        certificate: Callable[[], object] = lambda: None,
    ) -> None:
        """`address`: the address that this server listens on. `certificate`: returns another object when `connect` must
        be called again, because the server's certificate was replaced."""
        self._connect = connect
        self._certificate = certificate
        self._address = _own_address(address)
        self._node = node
        self._unreachable_since_ms: int | None = None

    async def run(self) -> None:
        self._node.receive_progress.start_measuring()
        while not self._node.listening.is_stopped:
            await self._run_on_one_channel()

    async def _run_on_one_channel(self) -> None:
        """Return when the server stops, or its certificate was replaced."""
        node, certificate = self._node, self._certificate()
        channel = self._connect(self._address, options=CHANNEL_OPTIONS)
        receive = channel.unary_unary(f"/{SERVICE_NAME}/{METHOD_NAME}")
        try:
            while not node.listening.is_stopped and self._certificate() is certificate:
                wait_ms = await self._probe(receive)
                if wait_ms:
                    await wait_for_event(node.receive_progress.probe_wanted, node.clock, wait_ms)
        finally:
            await channel.close()

    async def _probe(self, receive: Callable[..., Any]) -> int:
        """Send a probe. Returns how long to wait before the next one if no lease waits for it."""
        node = self._node
        node.receive_progress.probe_sent()
        try:
            await receive(b"", timeout=PROBE_TIMEOUT_S)
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
