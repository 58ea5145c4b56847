"""Certificate authorities and certificates for tests, made in memory and written to PEM files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

SERVER_NAMES = ("localhost", "node.example")
SERVER_ADDRESSES = ("127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate with its key."""

    certificate: x509.Certificate
    private_key: ec.EllipticCurvePrivateKey

    @property
    def cert_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def key_pem(self, password: str = "") -> bytes:
        encryption: serialization.KeySerializationEncryption = (
            serialization.BestAvailableEncryption(password.encode())
            if password
            else serialization.NoEncryption()
        )
        return self.private_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
        )

    def write(self, cert_file: Path, key_file: Path) -> None:
        """Write both files, each replaced in one step."""
        replace(cert_file, self.cert_pem)
        replace(key_file, self.key_pem())


class Authority:
    def __init__(self, name: str = "test CA") -> None:
        self._own = _issue(name, None, is_ca=True)

    @property
    def cert_pem(self) -> bytes:
        return self._own.cert_pem

    def write(self, path: Path) -> Path:
        replace(path, self.cert_pem)
        return path

    def issue_server(
        self, *, starts: timedelta = -timedelta(hours=1), lasts: timedelta = timedelta(days=30)
    ) -> Issued:
        return _issue("server", self._own, names=SERVER_NAMES, starts=starts, lasts=lasts)

    def issue_client(
        self, name: str = "client", uri: str = "", *, ends_in: timedelta = timedelta(days=30)
    ) -> Issued:
        starts = -timedelta(hours=1)
        return _issue(name, self._own, uri=uri, starts=starts, lasts=ends_in - starts)


@dataclass(frozen=True, slots=True)
class TlsFolder:
    """The files of one server."""

    folder: Path

    @property
    def cert_file(self) -> Path:
        return self.folder / "server.pem"

    @property
    def key_file(self) -> Path:
        return self.folder / "server.key"

    @property
    def ca_file(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def settings(self) -> dict[str, str]:
        return {"tls_cert_file": str(self.cert_file), "tls_key_file": str(self.key_file)}

    @property
    def flags(self) -> tuple[str, ...]:
        return ("--tls-cert-file", str(self.cert_file), "--tls-key-file", str(self.key_file))

    def rotate(self, authority: Authority) -> None:
        authority.issue_server().write(self.cert_file, self.key_file)


def make_tls_folder(folder: Path, authority: Authority) -> TlsFolder:
    folder.mkdir(exist_ok=True)
    files = TlsFolder(folder)
    files.rotate(authority)
    authority.write(files.ca_file)
    return files


def replace(path: Path, content: bytes) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_bytes(content)
    temporary.chmod(0o600)
    temporary.replace(path)


def _issue(
    name: str,
    issuer: Issued | None,
    *,
    is_ca: bool = False,
    names: tuple[str, ...] = (),
    uri: str = "",
    starts: timedelta = -timedelta(hours=1),
    lasts: timedelta = timedelta(days=30),
) -> Issued:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    begins = datetime.now(UTC) + starts
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + lasts)
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
    )
    if names:
        general_names = [
            *map(x509.DNSName, names),
            *(x509.IPAddress(ip_address(address)) for address in SERVER_ADDRESSES),
        ]
        builder = builder.add_extension(x509.SubjectAlternativeName(general_names), critical=False)
    if uri:
        uris = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)])
        builder = builder.add_extension(uris, critical=False)
    certificate = builder.sign(key if issuer is None else issuer.private_key, hashes.SHA256())
    return Issued(certificate, key)
