"""The client certificate with which a process calls its own listener, where that requires one. It exists in memory only."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

COMMON_NAME = "liveness own listener"
VALID = timedelta(days=3_650)
CLOCK_TOLERANCE = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    certificate: bytes
    private_key: bytes = field(repr=False)


def make_client_certificate(now_wall_ms: int) -> ClientCertificate:
    """Self-signed and no authority: whoever trusts it trusts nothing else."""
    now = datetime.fromtimestamp(now_wall_ms / 1_000, UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, COMMON_NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_TOLERANCE)
        .not_valid_after(now + VALID)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return ClientCertificate(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )
