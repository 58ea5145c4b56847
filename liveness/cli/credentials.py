"""The token that client commands send: from the file that LIVENESS_TOKEN_FILE names, never from a flag."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from liveness.cli.errors import UsageError
from liveness.security.posture import is_loopback


def read_token(file_name: str) -> str:
    if not file_name:
        return ""
    try:
        token = Path(file_name).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"the token in {file_name} cannot be read: {reason}") from error
    if not token or not token.isascii() or not token.isprintable():
        raise UsageError(f"{file_name} does not contain a token")
    return token


def with_token(channel: grpc.Channel, address: str, token: str) -> grpc.Channel:
    """Send the token with every call. It is refused on a connection that others could read."""
    if not is_loopback(address):
        raise UsageError(f"the token is not sent to {address} without TLS; connect to a loopback address")
    return grpc.intercept_channel(channel, _TokenInterceptor(token))


class _CallDetails(grpc.ClientCallDetails):
    def __init__(self, details: Any, metadata: tuple[tuple[str, str], ...]) -> None:
        self.method = details.method
        self.timeout = details.timeout
        self.metadata = metadata
        self.credentials = details.credentials
        self.wait_for_ready = details.wait_for_ready
        self.compression = details.compression


class _TokenInterceptor(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    def __init__(self, token: str) -> None:
        self._entry = ("authorization", f"Bearer {token}")

    def _with_token(self, details: Any) -> _CallDetails:
        return _CallDetails(details, (*(details.metadata or ()), self._entry))

    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        return continuation(self._with_token(details), request)

    def intercept_unary_stream(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        return continuation(self._with_token(details), request)
