"""TLS of a process's public listeners, gRPC and HTTP. The files are read again when they change, without a dropped call.

Each new connection uses the certificate that is current at its handshake; connections that exist go on.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

import grpc

from liveness.clock import Clock
from liveness.security.followed_tls_files import FollowedTlsFiles
from liveness.security.own_client_certificate import make_client_certificate
from liveness.security.tls_files import TlsFiles
from liveness.security.tls_settings import TlsPaths


class ListenerTls(FollowedTlsFiles):
    def __init__(self, paths: TlsPaths, clock: Clock) -> None:
        """Raises TlsFilesUnusable."""
        super().__init__(paths, clock)
        self._own_client = make_client_certificate(clock.wall_ms()) if paths.requires_client_cert else None

    # -- for listeners

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """gRPC asks for the certificate at each handshake. It refuses versions before TLS 1.2 by itself.

        It can require certificates of clients or not ask for them; it cannot leave the choice to the client."""
        return self.changed_configuration().credentials(requires_client_cert=self._paths.requires_client_cert)

    def edge_configuration(self) -> tuple[bytes, bytes, bytes | None, str]:
        """The same for the native edge: certificate chain, key, the authorities of clients' certificates, and whether a client
        must have one: none, optional or required."""
        files = self.certificate.files
        when = "none" if files.client_ca is None else "optional"
        if self._paths.requires_client_cert:
            when = "required"
        return files.cert_chain, files.private_key, self._trusted_by_grpc(files), when

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

    def _grpc_configuration(self, files: TlsFiles) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration(
            [(files.private_key, files.cert_chain)], self._trusted_by_grpc(files)
        )

    def _trusted_by_grpc(self, files: TlsFiles) -> bytes | None:
        client_ca, own_client = files.client_ca, self._own_client
        if client_ca is not None and own_client is not None:
            # This process connects to its own listener, too.
            return client_ca + b"\n" + own_client.certificate
        return client_ca


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
