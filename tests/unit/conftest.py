"""Unit tests start no process and open no server: a test that tries fails at once and is told where it belongs."""

from __future__ import annotations

import socket
import subprocess
from typing import Any, NoReturn

import grpc
import pytest


@pytest.fixture(autouse=True)
def _no_processes_and_no_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess.Popen, "__init__", _refuse_process)  # asyncio starts processes with it too
    monkeypatch.setattr(socket.socket, "bind", _refuse_server)
    for module in (grpc, grpc.aio):  # gRPC opens its sockets outside Python
        monkeypatch.setattr(module, "server", _refuse_server)


def _refuse_process(*arguments: Any, **options: Any) -> NoReturn:
    pytest.fail("A test under tests/unit starts a process: it belongs to tests/system.")


def _refuse_server(*arguments: Any, **options: Any) -> NoReturn:
    pytest.fail("A test under tests/unit opens a server: it belongs to tests/integration.")
