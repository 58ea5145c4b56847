"""TLS of a process's public listeners, gRPC and HTTP. The files are read again when they change, without a dropped call.

Each new connection uses the certificate that is current at its handshake; connections that exist go on. A file that cannot be
used leaves the last good certificate in place.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

import grpc
import structlog

from liveness.clock import Clock
from liveness.security.own_client_certificate import make_client_certificate
from liveness.security.tls_files import ListenerCertificate, TlsFiles, check_tls_files, read_tls_files
from liveness.security.tls_settings import TlsFilesUnusable, TlsPaths

logger = structlog.get_logger("liveness.tls")

CHECK_INTERVAL_MS = 1_000
EXPIRY_WARNING_MS = 14 * 86_400_000
EXPIRY_REMINDER_MS = 3_600_000


class ListenerTls:
    def __init__(self, paths: TlsPaths, clock: Clock) -> None:
        """Raises TlsFilesUnusable."""
        self._paths = paths
        self._clock = clock
        self.certificate = check_tls_files(paths, read_tls_files(paths), clock.wall_ms())
        """The certificate of new connections."""
        self.on_changed: list[Callable[[], None]] = []
        """Called after each new certificate."""
        self._rejected: TlsFiles | str | None = None
        """The contents, or the reading error, that could not be used at the last check."""
        self._is_rejection_logged = False
        self._expiry_logged_ms: int | None = None
        self._own_client = make_client_certificate(clock.wall_ms()) if paths.requires_client_cert else None

    # -- for listeners

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """gRPC asks for the certificate at each handshake. It refuses versions before TLS 1.2 by itself.

        It can require certificates of clients or not ask for them; it cannot leave the choice to the client."""
        return grpc.dynamic_ssl_server_credentials(
            self._grpc_configuration(),
            self._grpc_configuration,
            require_client_authentication=self._paths.requires_client_cert,
        )

    def http_context(self) -> ssl.SSLContext:
        return _CurrentContext.following(lambda: self.certificate.http_context)

    def connect(self, address: str, options: Any = ()) -> grpc.aio.Channel:
        """Open a channel of this process to its own listener. It trusts the current certificate only; a channel that must
        outlive that one has to be replaced in `on_changed`."""
        files, own_client = self.certificate.files, self._own_client
        credentials = grpc.ssl_channel_credentials(
            files.cert_chain,
            None if own_client is None else own_client.private_key,
            None if own_client is None else own_client.certificate,
        )
        name = ("grpc.ssl_target_name_override", self.certificate.server_name)
        return grpc.aio.secure_channel(address, credentials, options=(*options, name))

    def _grpc_configuration(self) -> grpc.ServerCertificateConfiguration:
        files, own_client = self.certificate.files, self._own_client
        client_ca = files.client_ca
        if client_ca is not None and own_client is not None:
            # This process connects to its own listener, too.
            client_ca = client_ca + b"\n" + own_client.certificate
        return grpc.ssl_server_certificate_configuration([(files.private_key, files.cert_chain)], client_ca)

    # -- following the files

    async def run(self) -> None:
        self._warn_before_expiry()
        while True:
            await self._clock.sleep(CHECK_INTERVAL_MS)
            await self.reload()

    async def reload(self) -> None:
        """Use the files if they have changed."""
        try:
            # In a thread, because a disk may hang and heartbeats must not wait for it.
            read = await asyncio.to_thread(self._read_changed)
        except TlsFilesUnusable as error:
            self._reject(str(error), error)
            return
        self._warn_before_expiry()
        if read is None:
            self._rejected, self._is_rejection_logged = None, False
            return
        try:
            certificate = await asyncio.to_thread(check_tls_files, self._paths, read, self._clock.wall_ms())
        except TlsFilesUnusable as error:
            self._reject(read, error)
            return
        self._use(certificate)

    def _read_changed(self) -> TlsFiles | None:
        files = read_tls_files(self._paths)
        return None if files == self.certificate.files else files

    def _use(self, certificate: ListenerCertificate) -> None:
        self.certificate = certificate
        self._rejected, self._is_rejection_logged, self._expiry_logged_ms = None, False, None
        logger.info("using the new TLS certificate", file=str(self._paths.cert_file))
        self._warn_before_expiry()
        for callback in self.on_changed:
            callback()

    def _reject(self, rejected: TlsFiles | str, error: TlsFilesUnusable) -> None:
        """Log a problem once, when it has lasted from one check to the next: certificate and key are replaced one after the
        other, so they do not match for a moment."""
        if rejected == self._rejected and not self._is_rejection_logged:
            self._is_rejection_logged = True
            logger.error(
                "the new TLS files cannot be used; going on with the last certificate", why=str(error)
            )
        elif rejected != self._rejected:
            self._rejected, self._is_rejection_logged = rejected, False

    def _warn_before_expiry(self) -> None:
        now_ms = self._clock.wall_ms()
        left_ms = self.certificate.expires_wall_ms - now_ms
        if left_ms > EXPIRY_WARNING_MS:
            return
        if self._expiry_logged_ms is None or now_ms - self._expiry_logged_ms >= EXPIRY_REMINDER_MS:
            self._expiry_logged_ms = now_ms
            logger.warning(
                "the TLS certificate expires soon; replace its files",
                file=str(self._paths.cert_file),
                hours_left=max(left_ms, 0) // 3_600_000,
            )


class _CurrentContext(ssl.SSLContext):
    """Passes each new connection on to the context that is current, because asyncio's server keeps one context for ever."""

    _current: Callable[[], ssl.SSLContext]

    @classmethod
    def following(cls, current: Callable[[], ssl.SSLContext]) -> _CurrentContext:
        context = cls(ssl.PROTOCOL_TLS_SERVER)
        context._current = current
        return context

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        return self._current().wrap_bio(*args, **options)
