"""A second listener of a gRPC server: a unix socket that only this process's user can reach. HTTP in the same process uses it,
because it has no credentials of its own and the public listener may demand some."""

from __future__ import annotations

import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any

import grpc

SOCKET_PATH_BYTES_MAX = 100
"""The system allows 108."""


class PrivateListener:
    def __init__(self, directory: Path, address: str) -> None:
        self._directory = directory
        self.address = address
        """As gRPC writes it: unix:PATH."""

    @classmethod
    def add_to(cls, server: Any) -> PrivateListener | None:
        """Add the listener to a server that has not started; None where there are no unix sockets."""
        if not hasattr(socket, "AF_UNIX"):
            return None
        try:
            directory = Path(tempfile.mkdtemp(prefix="liveness-"))  # readable for this user only
        except OSError:
            return None
        path = directory / "grpc.sock"
        address = f"unix:{path}"
        try:
            if len(bytes(path)) > SOCKET_PATH_BYTES_MAX:
                raise OSError(f"{path} is too long for a socket")
            server.add_insecure_port(address)
        except (OSError, RuntimeError):
            shutil.rmtree(directory, ignore_errors=True)
            return None
        return cls(directory, address)

    @staticmethod
    def connect(address: str, options: Any = ()) -> grpc.aio.Channel:
        """Open a channel to such a listener. It names a host, because gRPC would name the path, which is no host in HTTP."""
        return grpc.aio.insecure_channel(address, options=(*options, ("grpc.default_authority", "localhost")))

    def close(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
