"""Follows the files of a certificate: they are read again when they change. Files that cannot be used leave the last good
ones in place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Lock

import grpc
import structlog

from liveness.clock import Clock
from liveness.security.tls_files import ListenerCertificate, TlsFiles, check_tls_files, read_tls_files
from liveness.security.tls_settings import TlsFilesUnusable, TlsPaths

logger = structlog.get_logger("liveness.tls")

CHECK_INTERVAL_MS = 1_000
EXPIRY_WARNING_MS = 14 * 86_400_000
EXPIRY_REMINDER_MS = 3_600_000


class ChangedConfiguration:
    """Tells gRPC at a handshake whether the certificate has changed, once for each change.

    gRPC asks in threads of its own. It replaces what it has by each configuration that it is given, and crashes if another handshake
    begins just then; so it gets one only when there is a new one.
    """

    def __init__(
        self, current: Callable[[], TlsFiles], make: Callable[[TlsFiles], grpc.ServerCertificateConfiguration]
    ) -> None:
        self._current = current
        self._make = make
        self._given = current()
        self._lock = Lock()

    def credentials(self, *, requires_client_cert: bool) -> grpc.ServerCredentials:
        return grpc.dynamic_ssl_server_credentials(
            self._make(self._given),
            self,  # type: ignore[arg-type]  # None: nothing has changed
            require_client_authentication=requires_client_cert,
        )

    def __call__(self) -> grpc.ServerCertificateConfiguration | None:
        with self._lock:
            current = self._current()
            if current is self._given:
                return None
            self._given = current
        return self._make(current)


class FollowedTlsFiles:
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

    def changed_configuration(self) -> ChangedConfiguration:
        """For one gRPC listener."""
        return ChangedConfiguration(lambda: self.certificate.files, self._grpc_configuration)

    def _grpc_configuration(self, files: TlsFiles) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration(
            [(files.private_key, files.cert_chain)], files.client_ca
        )

    async def run(self) -> None:
        self._warn_before_expiry()
        while True:
            await self._clock.sleep(CHECK_INTERVAL_MS)
            await self.reload()

    async def reload(self) -> bool:
        """Use the files if they have changed. Returns whether new ones are used."""
        try:
            # In a thread, because a disk may hang and heartbeats must not wait for it.
            read = await asyncio.to_thread(self._read_changed)
        except TlsFilesUnusable as error:
            self._reject(str(error), error)
            return False
        self._warn_before_expiry()
        if read is None:
            self._rejected, self._is_rejection_logged = None, False
            return False
        try:
            certificate = await asyncio.to_thread(check_tls_files, self._paths, read, self._clock.wall_ms())
        except TlsFilesUnusable as error:
            self._reject(read, error)
            return False
        self._use(certificate)
        return True

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
