"""A server with its HTTP server, in this process, on a manual clock."""

from __future__ import annotations

from typing import Any

from liveness.http.listen_address import bind_address, loopback_address
from liveness.http.server import HttpServer
from tests.integration.http.http_client import Client
from tests.integration.server.server_harness import ServerHarness


class HttpHarness:
    def __init__(self, url: str) -> None:
        self.harness = ServerHarness(url)
        self.http_server: HttpServer
        self.client: Client
        self.port = 0
        self._is_open = False

    async def open(
        self, *, settings: dict[str, Any] | None = None, host: str = "127.0.0.1", **http_server: Any
    ) -> HttpHarness:
        """Start; a second start uses the same port."""
        await self.harness.start(**(settings or {}))
        listen_address = bind_address(host, self.port)
        self.port = listen_address.port
        self.http_server = HttpServer(
            loopback_address(self.harness.server.address), listen_address, self.harness.clock, **http_server
        )
        await self.http_server.start()
        self.client = Client(self.port)
        self._is_open = True
        return self

    async def close(self) -> None:
        """Stop in the order that a process uses."""
        if self._is_open:
            self._is_open = False
            self.http_server.stop_accepting()
            await self.harness.stop()
            await self.http_server.stop()
