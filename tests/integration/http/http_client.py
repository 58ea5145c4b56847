"""An HTTP client that sends exactly the given bytes, so that tests can send invalid requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

TIMEOUT_S = 30
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Answer:
    code: int
    headers: Mapping[str, str]
    """Header names are in lower case."""
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json()["error"]


@dataclass(frozen=True)
class ServerEvent:
    id: str
    name: str
    data: str

    def json(self) -> Any:
        return json.loads(self.data)


class Connection:
    """One HTTP connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self.reader = reader
        self.writer = writer
        self.host = host

    async def send(
        self, verb: str, target: str, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> None:
        lines = {"Host": self.host, **(headers or {})}
        if body or verb not in ("GET", "HEAD"):
            lines.setdefault("Content-Length", str(len(body)))
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self.writer.write(f"{verb} {target} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body)
        await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        first, *rest = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
        pairs = (line.split(": ", 1) for line in rest)
        return int(first.split()[1]), {name.lower(): value for name, value in pairs}

    async def answer(self, verb: str = "GET") -> Answer:
        code, headers = await self.head()
        if verb == "HEAD" or code == 304:
            return Answer(code, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            parts = [part async for part in self.chunks()]
            return Answer(code, headers, b"".join(parts))
        return Answer(code, headers, await self.reader.readexactly(int(headers["content-length"])))

    async def chunks(self) -> AsyncIterator[bytes]:
        while size := int(await self.reader.readline(), 16):
            yield (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readline()

    async def events(self) -> AsyncIterator[ServerEvent | str]:
        """Yield server-sent events, and comments as text."""
        text = ""
        async for chunk in self.chunks():
            text += chunk.decode()
            *whole, text = text.split("\n\n")
            for block in whole:
                yield _event(block)
        assert text == "", f"half of an event: {text}"


def _event(block: str) -> ServerEvent | str:
    if block.startswith(":"):
        return block
    fields = dict(line.split(": ", 1) for line in block.split("\n"))
    return ServerEvent(fields.get("id", ""), fields.get("event", "message"), fields["data"])


class Client:
    def __init__(self, port: int, host: str = "127.0.0.1", source: str | None = None) -> None:
        """`source`: the client's own address, for instance 127.0.0.2."""
        self.port = port
        self.host = host
        self._local_address = None if source is None else (source, 0)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Connection]:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection(
                self.host, self.port, local_addr=self._local_address
            )
            try:
                yield Connection(reader, writer, f"{self.host}:{self.port}")
            finally:
                writer.close()

    async def ask(
        self, verb: str, target: str, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Answer:
        async with self.connect() as http_connection:
            await http_connection.send(verb, target, headers, body)
            return await http_connection.answer(verb)

    async def get(self, target: str, **headers: str) -> Any:
        """Send a GET that must succeed, and return the JSON."""
        answer = await self.ask("GET", target, headers)
        assert answer.code == 200, answer
        return answer.json()

    async def post(self, target: str, value: Any, verb: str = "POST") -> Any:
        answer = await self.ask(verb, target, JSON, json.dumps(value).encode())
        assert answer.code == 200, answer
        return answer.json()

    async def refused(self, verb: str, target: str, value: Any = None) -> tuple[int, str, str]:
        """Send a call that must be refused, and return its HTTP code, reason and message."""
        body = b"" if value is None else json.dumps(value).encode()
        answer = await self.ask(verb, target, JSON if body else None, body)
        assert answer.code >= 400, answer
        assert answer.error["code"] == answer.code
        return answer.code, answer.error["reason"], answer.error["message"]
