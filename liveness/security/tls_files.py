"""Load a certificate, its key and the CA of the other end from their files, and say in one sentence what is wrong with them."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from liveness.security.tls_settings import TlsFilesUnusable, TlsPaths


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """The contents of the files at one moment."""

    cert_chain: bytes
    private_key: bytes = field(repr=False)
    client_ca: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerCertificate:
    """Files that were checked: the key belongs to the certificate, which is valid now."""

    files: TlsFiles
    server_name: str
    """A name for which the certificate was issued."""
    expires_wall_ms: int
    http_context: ssl.SSLContext


def read_tls_files(paths: TlsPaths) -> TlsFiles:
    return TlsFiles(
        cert_chain=_read("certificate", paths.cert_file),
        private_key=_read("key", paths.key_file),
        client_ca=None if paths.client_ca_file is None else _read(paths.ca_kind, paths.client_ca_file),
    )


def check_tls_files(paths: TlsPaths, files: TlsFiles, now_wall_ms: int) -> ListenerCertificate:
    """Raises TlsFilesUnusable. `paths` are read a second time: Python's ssl takes a key from a file only."""
    certificate = _parse_certificates("certificate", paths.cert_file, files.cert_chain)[0]
    key = _parse_key(paths.key_file, files.private_key)
    if _public_bytes(certificate.public_key()) != _public_bytes(key.public_key()):
        raise TlsFilesUnusable(
            detail=f"the key in {paths.key_file} does not belong to the certificate in {paths.cert_file}"
        )
    starts_ms = int(certificate.not_valid_before_utc.timestamp() * 1_000)
    expires_ms = int(certificate.not_valid_after_utc.timestamp() * 1_000)
    if now_wall_ms >= expires_ms:
        expired = f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
        raise TlsFilesUnusable(
            detail=f"the certificate in {paths.cert_file} expired on {expired}; replace it"
        )
    if now_wall_ms < starts_ms:
        begins = f"{certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
        raise TlsFilesUnusable(
            detail=f"the certificate in {paths.cert_file} is not valid before {begins}; check this machine's clock"
        )
    if paths.client_ca_file is not None:
        _parse_certificates(paths.ca_kind, paths.client_ca_file, files.client_ca or b"")
    return ListenerCertificate(
        files=files,
        server_name=_server_name(certificate),
        expires_wall_ms=expires_ms,
        http_context=_make_http_context(paths, files),
    )


def _read(what: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsFilesUnusable(detail=f"the {what} file {path} cannot be read: {error.strerror}") from error


def _parse_certificates(what: str, path: Path, content: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise TlsFilesUnusable(detail=f"the {what} file {path} has no certificate in PEM format") from error


def _parse_key(path: Path, content: bytes) -> rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except TypeError:
        raise TlsFilesUnusable(
            detail=f"the key file {path} is encrypted; write it without a passphrase: openssl pkey -in {path} -out FILE"
        ) from None
    except Exception:  # noqa: BLE001  # without the cause, which may contain what was read
        raise TlsFilesUnusable(detail=f"the key file {path} has no private key in PEM format") from None
    if not isinstance(key, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
        raise TlsFilesUnusable(detail=f"the key in {path} is neither RSA nor EC; create one of these")
    return key


def _public_bytes(key: object) -> bytes:
    encoded: bytes = key.public_bytes(  # type: ignore[attr-defined]  # every public key has it
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return encoded


def _server_name(certificate: x509.Certificate) -> str:
    """A name under which a client may verify the certificate."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        common_names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return str(common_names[0].value) if common_names else ""
    dns_names = names.get_values_for_type(x509.DNSName)
    if dns_names:
        return dns_names[0].replace("*", "liveness")
    addresses = names.get_values_for_type(x509.IPAddress)
    return str(addresses[0]) if addresses else ""


def _make_http_context(paths: TlsPaths, files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        # Never ask for a passphrase on the terminal.
        context.load_cert_chain(paths.cert_file, paths.key_file, password="")
        if files.client_ca is not None:
            context.load_verify_locations(cadata=files.client_ca.decode("ascii", "replace"))
            context.verify_mode = ssl.CERT_REQUIRED if paths.requires_client_cert else ssl.CERT_OPTIONAL
    except (ssl.SSLError, OSError) as error:
        why = getattr(error, "reason", None) or error.strerror or str(error)
        raise TlsFilesUnusable(
            detail=f"{paths.cert_file} and {paths.key_file} were refused: {why}"
        ) from error
    return context
