"""Files that cannot be used for TLS are refused with one sentence that says which file, and why."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from liveness.clock import SystemClock
from liveness.security.tls_files import ListenerCertificate, check_tls_files, read_tls_files
from liveness.security.tls_settings import TlsFilesUnusable, TlsPaths
from tests.certificates import Authority, TlsFolder, make_tls_folder


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture
def files(tmp_path: Path, authority: Authority) -> TlsFolder:
    return make_tls_folder(tmp_path, authority)


def load(files: TlsFolder, client_ca_file: Path | None = None) -> ListenerCertificate:
    paths = TlsPaths(cert_file=files.cert_file, key_file=files.key_file, client_ca_file=client_ca_file)
    return check_tls_files(paths, read_tls_files(paths), SystemClock().wall_ms())


def refusal(files: TlsFolder, client_ca_file: Path | None = None) -> str:
    with pytest.raises(TlsFilesUnusable) as caught:
        load(files, client_ca_file)
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    return message


def test_good_files_are_accepted(files: TlsFolder) -> None:
    certificate = load(files, files.ca_file)
    assert certificate.server_name == "localhost"
    assert b"PRIVATE" not in repr(certificate).encode()


def test_a_missing_file(files: TlsFolder) -> None:
    files.key_file.unlink()
    assert refusal(files) == (
        f"TLS cannot be used: the key file {files.key_file} cannot be read: No such file or directory."
    )


def test_a_key_of_another_certificate(files: TlsFolder, authority: Authority) -> None:
    files.key_file.write_bytes(authority.issue_server().key_pem())
    assert f"the key in {files.key_file} does not belong to the certificate in" in refusal(files)


def test_a_file_that_is_no_certificate(files: TlsFolder) -> None:
    files.cert_file.write_bytes(b"nonsense")
    assert f"the certificate file {files.cert_file} has no certificate in PEM format" in refusal(files)


def test_a_file_that_is_no_key(files: TlsFolder) -> None:
    files.key_file.write_bytes(b"canary")
    message = refusal(files)
    assert f"the key file {files.key_file} has no private key in PEM format" in message
    assert "canary" not in message


def test_an_encrypted_key(files: TlsFolder, authority: Authority) -> None:
    issued = authority.issue_server()
    files.cert_file.write_bytes(issued.cert_pem)
    files.key_file.write_bytes(issued.key_pem("a passphrase"))
    assert "is encrypted; write it without a passphrase" in refusal(files)


def test_a_key_of_another_kind(files: TlsFolder) -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    files.key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    assert "is neither RSA nor EC" in refusal(files)


def test_an_expired_certificate(files: TlsFolder, authority: Authority) -> None:
    expired = authority.issue_server(starts=-timedelta(days=40), lasts=timedelta(days=30))
    expired.write(files.cert_file, files.key_file)
    assert f"the certificate in {files.cert_file} expired on " in refusal(files)


def test_a_certificate_of_the_future(files: TlsFolder, authority: Authority) -> None:
    authority.issue_server(starts=timedelta(days=1)).write(files.cert_file, files.key_file)
    assert "is not valid before" in refusal(files)


def test_a_client_ca_without_certificates(files: TlsFolder) -> None:
    files.ca_file.write_bytes(b"")
    assert f"the client CA file {files.ca_file} has no certificate in PEM format" in refusal(
        files, files.ca_file
    )
