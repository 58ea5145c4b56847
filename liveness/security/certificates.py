"""Creates an authority of the cluster's own, and the certificates of its nodes and frontends."""

from __future__ import annotations

import os
from collections.abc import Collection
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from liveness.security.peer_certificates import FRONTEND_URI, NODE_URI
from liveness.templated_error import TemplatedError

AUTHORITY_DAYS = 3_650
LOOPBACK_HOSTS = ("localhost", "127.0.0.1")
NOT_YET_VALID = timedelta(minutes=5)
"""Certificates are valid from a little earlier on, for machines whose clocks are behind."""


class NoAuthority(TemplatedError):
    template = "{folder} has a ca.pem without its ca.key, so no certificate can be signed; add the key, or choose another folder."

    folder: Path


def create_certificates(folder: Path, hosts: Collection[str], now: datetime, days: int) -> list[Path]:
    """Write ca.pem, node.pem and frontend.pem with their keys. An authority that is there already is used again, so that
    certificates can be renewed one by one. Returns the files that were written."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    ca_file, ca_key_file = folder / "ca.pem", folder / "ca.key"
    if ca_file.exists():
        if not ca_key_file.exists():
            raise NoAuthority(folder=folder)
        authority = x509.load_pem_x509_certificate(ca_file.read_bytes())
        authority_key = serialization.load_pem_private_key(ca_key_file.read_bytes(), None)
        assert isinstance(authority_key, ec.EllipticCurvePrivateKey), "this command made it"
    else:
        authority_key = ec.generate_private_key(ec.SECP256R1())
        authority = _make_authority(authority_key, now)
        written += _write(ca_file, authority, ca_key_file, authority_key)
    for name, uri in (("node", NODE_URI), ("frontend", FRONTEND_URI)):
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _make_certificate(name, uri, hosts, key, authority, authority_key, now, days)
        written += _write(folder / f"{name}.pem", certificate, folder / f"{name}.key", key)
    return written


def _make_authority(key: ec.EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "liveness cluster")])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - NOT_YET_VALID)
        .not_valid_after(now + timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(is_authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _make_certificate(
    name: str,
    uri: str,
    hosts: Collection[str],
    key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    now: datetime,
    days: int,
) -> x509.Certificate:
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri)]
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if uri == NODE_URI:
        # Nobody calls a frontend on the cluster's port, so its certificate cannot stand in for a node's.
        names += [_host_name(host) for host in dict.fromkeys((*hosts, *LOOPBACK_HOSTS))]
        usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"liveness {name}")]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - NOT_YET_VALID)
        .not_valid_after(min(now + timedelta(days=days), authority.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(is_authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(
    cert_file: Path, certificate: x509.Certificate, key_file: Path, key: ec.EllipticCurvePrivateKey
) -> list[Path]:
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    _replace(key_file, key.private_bytes(pem, pkcs8, serialization.NoEncryption()), 0o600)
    _replace(cert_file, certificate.public_bytes(pem), 0o644)
    return [cert_file, key_file]


def _replace(path: Path, content: bytes, mode: int) -> None:
    """Replace the file as a whole: servers that use it read it at any time."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(file, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    fresh.replace(path)
