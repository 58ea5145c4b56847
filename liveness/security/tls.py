"""Mutual TLS between nodes, and between frontends and nodes.

Every peer shows a certificate of the cluster's own authority. Its subject alternative name says what the peer is: the URI
`liveness://node` or `liveness://frontend`. The files are read again when they change: new connections use the new
certificates, and calls that are under way end on the connection that they began on.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import grpc
import structlog

from liveness.background import BackgroundTasks
from liveness.clock import Clock
from liveness.templated_error import TemplatedError

logger = structlog.get_logger("liveness.security")

NODE_URI = "liveness://node"
FRONTEND_URI = "liveness://frontend"
LOOK_INTERVAL_MS = 1_000
"""How often the files are looked at."""


class TlsFilesInvalid(TemplatedError):
    template = "The files for TLS between nodes cannot be used: {detail}."

    detail: str


class TlsFiles(NamedTuple):
    cert_file: Path
    key_file: Path
    ca_file: Path


class _Contents(NamedTuple):
    cert: bytes
    key: bytes
    ca: bytes


class ClusterTlsSettings(Protocol):
    @property
    def cluster_cert_file(self) -> str: ...
    @property
    def cluster_key_file(self) -> str: ...
    @property
    def cluster_ca_file(self) -> str: ...


def cluster_tls(settings: ClusterTlsSettings) -> ClusterTls | None:
    """None if the settings name no files. Raises `TlsFilesInvalid`."""
    if not settings.cluster_cert_file:
        return None
    names = (settings.cluster_cert_file, settings.cluster_key_file, settings.cluster_ca_file)
    return ClusterTls(TlsFiles(*map(Path, names)))


def peer_uris(auth_context: Mapping[str, Iterable[bytes]]) -> set[str]:
    """The URIs in the peer's certificate. `auth_context`: what gRPC says about the connection of a call."""
    return {uri.decode(errors="replace") for uri in auth_context.get("peer_uri", ())}


class ClusterTls:
    def __init__(self, files: TlsFiles) -> None:
        """Raises `TlsFilesInvalid`."""
        self._files = files
        self._contents = _read(files)
        self.revision = 1
        """Increases when the files have changed and can be used."""
        self._last_problem = ""

    def server_credentials(self) -> grpc.ServerCredentials:
        """Credentials of a listener that refuses peers without a certificate."""
        given = self._contents

        def certificates_of(contents: _Contents) -> grpc.ServerCertificateConfiguration:
            return grpc.ssl_server_certificate_configuration([(contents.key, contents.cert)], contents.ca)

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            # gRPC calls this in a thread of its own, for each handshake.
            nonlocal given
            current = self._contents
            if current is given:
                return None
            given = current
            return certificates_of(current)

        return grpc.dynamic_ssl_server_credentials(
            certificates_of(given),
            fetch,  # type: ignore[arg-type]  # None: nothing has changed
            require_client_authentication=True,
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        contents = self._contents
        return grpc.ssl_channel_credentials(contents.ca, contents.key, contents.cert)

    def connect(self, address: str, options: Sequence[tuple[str, Any]] = ()) -> RenewedChannel:
        """Replaces `grpc.aio.insecure_channel`."""
        return RenewedChannel(self, address, options)

    async def watch(self, clock: Clock) -> None:
        """Read the files again whenever they have changed."""
        while True:
            await clock.sleep(LOOK_INTERVAL_MS)
            self.reload()

    def reload(self) -> bool:
        """Read the files. Returns whether they have changed; files that cannot be used are left for the next time."""
        try:
            contents = _read(self._files)
        except TlsFilesInvalid as error:
            if self._last_problem != error.detail:
                logger.warning("new files for TLS not used; the last good ones are", why=error.detail)
            self._last_problem = error.detail
            return False
        self._last_problem = ""
        if contents == self._contents:
            return False
        self._contents = contents
        self.revision += 1
        logger.info("new certificates are used between nodes")
        return True


def _read(files: TlsFiles) -> _Contents:
    contents = _read_bytes(files)
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # Without the password, OpenSSL would ask for that of an encrypted key on the terminal.
        context.load_cert_chain(files.cert_file, files.key_file, password=lambda: b"")
        context.load_verify_locations(cadata=contents.ca.decode("ascii"))
    except (OSError, ValueError) as error:
        why = error.reason if isinstance(error, ssl.SSLError) and error.reason else str(error)
        names = ", ".join(map(str, files))
        raise TlsFilesInvalid(
            detail=f"{names} do not hold a certificate, its key without a password, and an authority ({why})"
        ) from error
    if _read_bytes(files) != contents:
        raise TlsFilesInvalid(detail="they are just being written")
    return contents


def _read_bytes(files: TlsFiles) -> _Contents:
    try:
        return _Contents(*(file.read_bytes() for file in files))
    except OSError as error:
        raise TlsFilesInvalid(detail=f"{error.filename} cannot be read: {error.strerror}") from error


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
