"""Mutual TLS between nodes, and between frontends and nodes.

Every peer shows a certificate of the cluster's own authority. Its subject alternative name says what the peer is: the URI
`liveness://node` or `liveness://frontend`. The files are read again when they change: new connections use the new
certificates, and calls that are under way end on the connection that they began on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import grpc

from liveness.background import BackgroundTasks
from liveness.clock import Clock
from liveness.security.followed_tls_files import FollowedTlsFiles
from liveness.security.tls_settings import TlsPaths


class ClusterTls(FollowedTlsFiles):
    def __init__(self, paths: TlsPaths, clock: Clock) -> None:
        """Raises TlsFilesUnusable."""
        super().__init__(paths, clock)
        self.revision = 1
        """Increases when the files have changed and can be used."""
        self.on_changed.append(self._count_revision)

    def _count_revision(self) -> None:
        self.revision += 1

    def server_credentials(self) -> grpc.ServerCredentials:
        """Credentials of a listener that refuses peers without a certificate."""
        return self.changed_configuration().credentials(requires_client_cert=True)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        files = self.certificate.files
        return grpc.ssl_channel_credentials(files.client_ca, files.private_key, files.cert_chain)

    def connect(self, address: str, options: Sequence[tuple[str, Any]] = ()) -> RenewedChannel:
        """Replaces `grpc.aio.insecure_channel`."""
        return RenewedChannel(self, address, options)


class _Connection:
    """A gRPC channel, and how many calls are under way on it."""

    def __init__(self, tls: ClusterTls, address: str, options: Sequence[tuple[str, Any]]) -> None:
        self.revision = tls.revision
        self.channel = grpc.aio.secure_channel(address, tls.channel_credentials(), options=options)
        self.open_calls = 0
        self.callables: dict[object, Callable[..., Any]] = {}


class RenewedChannel:
    """A channel to one address. After the certificates have changed, new calls use a new connection; the old one is closed when
    its last call is over."""

    def __init__(self, tls: ClusterTls, address: str, options: Sequence[tuple[str, Any]]) -> None:
        self._tls = tls
        self._address = address
        self._options = options
        self._current = _Connection(tls, address, options)
        self._retired: set[_Connection] = set()
        self._tasks = BackgroundTasks("tls")

    def unary_unary(self, path: str, *args: Any, **options: Any) -> Callable[..., Any]:
        return self._callable("unary_unary", path, args, options)

    def unary_stream(self, path: str, *args: Any, **options: Any) -> Callable[..., Any]:
        return self._callable("unary_stream", path, args, options)

    def stream_stream(self, path: str, *args: Any, **options: Any) -> Callable[..., Any]:
        return self._callable("stream_stream", path, args, options)

    async def close(self, grace: float | None = None) -> None:
        await self._tasks.close()
        for connection in (self._current, *self._retired):
            await connection.channel.close(grace)
        self._retired.clear()

    def _callable(
        self, kind: str, path: str, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Callable[..., Any]:
        key = object()

        def start(*call_args: Any, **call_options: Any) -> Any:
            connection = self._connection()
            start_call = connection.callables.get(key)
            if start_call is None:
                start_call = getattr(connection.channel, kind)(path, *args, **options)
                connection.callables[key] = start_call
            call = start_call(*call_args, **call_options)
            connection.open_calls += 1
            call.add_done_callback(lambda _: self._on_call_over(connection))
            return call

        return start

    def _connection(self) -> _Connection:
        if self._current.revision != self._tls.revision:
            before = self._current
            self._current = _Connection(self._tls, self._address, self._options)
            self._retired.add(before)
            if not before.open_calls:
                self._close_retired(before)
        return self._current

    def _on_call_over(self, connection: _Connection) -> None:
        connection.open_calls -= 1
        if connection in self._retired and not connection.open_calls:
            self._close_retired(connection)

    def _close_retired(self, connection: _Connection) -> None:
        self._retired.discard(connection)
        self._tasks.start(connection.channel.close(None))
