"""A server with a face, in this process, on a clock that tests move."""

from __future__ import annotations

from typing import Any

from liveness.http.face import Face
from liveness.http.places import loopback, take
from tests.http.client import Client
from tests.server.site import Site


class House:
    def __init__(self, url: str) -> None:
        self.site = Site(url)
        self.face: Face
        self.client: Client
        self.port = 0
        self._standing = False

    async def open(
        self, *, settings: dict[str, Any] | None = None, host: str = "127.0.0.1", **face: Any
    ) -> House:
        """Again at the same port, if it was open before."""
        await self.site.start(**(settings or {}))
        place = take(host, self.port)
        self.port = place.port
        self.face = Face(loopback(self.site.server.address), place, self.site.clock, **face)
        await self.face.start()
        self.client = Client(self.port)
        self._standing = True
        return self

    async def close(self) -> None:
        """In the order in which a process does it."""
        if self._standing:
            self._standing = False
            self.face.close_doors()
            await self.site.stop()
            await self.face.stop()
