"""What the settings say about TLS, for a process that may not use it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from liveness.clock import Clock
from liveness.config.settings import TLS_CLIENT_AUTH_REQUIRED, TlsSettings
from liveness.templated_error import TemplatedError

if TYPE_CHECKING:
    from liveness.security.cluster_tls import ClusterTls
    from liveness.security.listener_tls import ListenerTls


class TlsFilesUnusable(TemplatedError):
    template = "TLS cannot be used: {detail}."

    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsPaths:
    cert_file: Path
    """The listener's certificate, followed by those of intermediate authorities."""
    key_file: Path
    client_ca_file: Path | None = None
    """The authorities that sign the certificates of clients; None: clients are not asked for certificates."""
    ca_kind: str = "client CA"
    """What messages call that file."""
    requires_client_cert: bool = False


class ClusterTlsSettings(Protocol):
    @property
    def cluster_cert_file(self) -> str: ...
    @property
    def cluster_key_file(self) -> str: ...
    @property
    def cluster_ca_file(self) -> str: ...


def make_cluster_tls(settings: ClusterTlsSettings, clock: Clock) -> ClusterTls | None:
    """None if the settings name no files. Raises TlsFilesUnusable."""
    if not settings.cluster_cert_file:
        return None
    from liveness.security.cluster_tls import ClusterTls  # late, as below

    return ClusterTls(
        TlsPaths(
            cert_file=Path(settings.cluster_cert_file),
            key_file=Path(settings.cluster_key_file),
            client_ca_file=Path(settings.cluster_ca_file),
            ca_kind="cluster CA",
            requires_client_cert=True,
        ),
        clock,
    )


def make_listener_tls(settings: TlsSettings, clock: Clock) -> ListenerTls | None:
    """None without TLS. Raises TlsFilesUnusable."""
    if not settings.tls_cert_file:
        return None
    # Imported late: the library takes a tenth of a second to load, and a server without TLS does not need it.
    from liveness.security.listener_tls import ListenerTls

    client_ca_file = settings.tls_client_ca_file
    paths = TlsPaths(
        cert_file=Path(settings.tls_cert_file),
        key_file=Path(settings.tls_key_file),
        client_ca_file=Path(client_ca_file) if client_ca_file else None,
        requires_client_cert=settings.tls_client_auth == TLS_CLIENT_AUTH_REQUIRED,
    )
    return ListenerTls(paths, clock)
