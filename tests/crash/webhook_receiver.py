"""Another engine: it accepts the deliveries of a webhook, and remembers them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from types import TracebackType
from typing import Any, Self

SECRET = "a shared secret"
_TAKEN = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"


class WebhookReceiver:
    def __init__(self) -> None:
        self.deliveries: Counter[str] = Counter()
        """How often each delivery came, by its id, which is the same each time."""
        self.lost: dict[str, tuple[str, int, str]] = {}
        """By delivery: the worker, its lease epoch, and the activity."""
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    @property
    def environ(self) -> dict[str, str]:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return {"LIVENESS_WEBHOOK_URL": f"http://127.0.0.1:{port}/", "LIVENESS_WEBHOOK_SECRET": SECRET}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            size = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            self._take(json.loads(await reader.readexactly(size)))
            writer.write(_TAKEN)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the server was killed while it sent, and will send it again
        finally:
            writer.close()

    def _take(self, body: dict[str, Any]) -> None:
        delivery, lost = body["delivery"], body["lost_from"]
        self.deliveries[delivery] += 1
        self.lost[delivery] = (lost["worker_instance_key"], lost["lease_epoch"], body["workflow_id"])
