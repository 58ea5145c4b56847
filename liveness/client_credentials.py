"""The credentials of a client: how it checks the server (TLS), and the token that says who calls.

The SDK and the command line share it. Files are checked when they are read, so that a file that is half written or broken is
noticed before a channel uses it.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import grpc

from liveness.network_addresses import parse_ip, split_address

TOKEN_CHARS_MAX = 16_384
_TRUE = ("true", "1", "yes", "on")
_FALSE = ("false", "0", "no", "off", "")


class CredentialsError(ValueError):
    """The message is a sentence without its period, and never contains a token or a key."""


@dataclass(frozen=True, slots=True)
class TLS:
    """How to connect with TLS. Files are in PEM format, and are read again when they change."""

    ca_file: str | os.PathLike[str] | None = None
    """The authorities that sign the server's certificate; None: those that this system trusts."""
    cert_file: str | os.PathLike[str] | None = None
    """This program's own certificate, for a server that asks for one."""
    key_file: str | os.PathLike[str] | None = None
    server_name: str = ""
    """The name in the server's certificate, if it is not the one in the address."""

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise CredentialsError("a client certificate needs both a certificate file and a key file")
        for name in ("ca_file", "cert_file", "key_file"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else os.fspath(value))


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A file that contains the token. It is read again when it changes."""

    path: str | os.PathLike[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", os.fspath(self.path))


Token: TypeAlias = str | TokenFile | Callable[[], str]
"""The token itself, its file, or a function that returns it."""


class _TlsMaterial(NamedTuple):
    """The contents of the files of a `TLS`."""

    ca: bytes | None
    cert: bytes | None
    key: bytes | None


@dataclass(frozen=True, slots=True)
class Credentials:
    tls: TLS | None = None
    token: Token | None = field(default=None, repr=False)

    @property
    def shared_key(self) -> tuple[object, ...]:
        """Equal for credentials that may share a connection."""
        token = id(self.token) if callable(self.token) else self.token
        return self.tls, token

    def check_addresses(self, addresses: Sequence[str]) -> None:
        """Refuse to send a token where others could read it."""
        if self.token is None or self.tls is not None:
            return
        for address in addresses:
            if not _is_loopback(address):
                raise CredentialsError(
                    f"a token is not sent to {address} in plain text; connect with TLS, or to a loopback address"
                )


def resolve_credentials(
    tls: bool | TLS | None = None, token: Token | None = None, environ: Mapping[str, str] | None = None
) -> Credentials:
    """The credentials that the program names; what it leaves out (None) comes from the environment.

    `tls=True`: trust the authorities of this system. `tls=False`, `token=""`: none, whatever the environment says."""
    variables = os.environ if environ is None else environ
    if tls is None:
        tls = _tls_from(variables)
    elif isinstance(tls, bool):
        tls = TLS() if tls else None
    if token is None and variables.get("LIVENESS_TOKEN_FILE"):
        token = TokenFile(variables["LIVENESS_TOKEN_FILE"])
    return Credentials(tls, token or None)


def _tls_from(environ: Mapping[str, str]) -> TLS | None:
    names = ("CA_FILE", "CLIENT_CERT_FILE", "CLIENT_KEY_FILE", "SERVER_NAME")
    ca_file, cert_file, key_file, server_name = (environ.get(f"LIVENESS_TLS_{name}", "") for name in names)
    wanted = environ.get("LIVENESS_TLS", "").lower()
    if wanted not in (*_TRUE, *_FALSE):
        raise CredentialsError(f"variable LIVENESS_TLS is {wanted!r}, but must be true or false")
    is_named = any((ca_file, cert_file, key_file, server_name))
    if wanted in _TRUE or (is_named and "LIVENESS_TLS" not in environ):
        return TLS(ca_file or None, cert_file or None, key_file or None, server_name)
    return None


class LoadedCredentials:
    """Credentials whose files were read. Any thread may use it; one thread at a time may reload it."""

    def __init__(self, credentials: Credentials) -> None:
        """Raises CredentialsError. Reads files, and calls the token's function."""
        self._credentials = credentials
        self._tls_material = _read_tls(credentials.tls)
        self._token = _read_token(credentials.token)

    @property
    def uses_tls(self) -> bool:
        return self._credentials.tls is not None

    @property
    def has_token(self) -> bool:
        return self._credentials.token is not None

    @property
    def has_files(self) -> bool:
        tls = self._credentials.tls
        return isinstance(self._credentials.token, TokenFile) or (
            tls is not None and (tls.ca_file is not None or tls.cert_file is not None)
        )

    def open_channel(self, address: str, options: Sequence[tuple[str, Any]] = ()) -> grpc.Channel:
        """Open a channel with the current certificates. Each call on it carries the token that is then current."""
        tls, material = self._credentials.tls, self._tls_material
        if tls is None:
            channel = grpc.insecure_channel(address, options=options)
        else:
            if tls.server_name:
                options = (*options, ("grpc.ssl_target_name_override", tls.server_name))
            credentials = grpc.ssl_channel_credentials(material.ca, material.key, material.cert)
            channel = grpc.secure_channel(address, credentials, options=options)
        return grpc.intercept_channel(channel, _AddToken(lambda: self._token)) if self.has_token else channel

    def reload_tls(self) -> bool:
        """Read the certificates again, and return whether they have changed. Raises CredentialsError; the last ones stay."""
        material = _read_tls(self._credentials.tls)
        changed, self._tls_material = material != self._tls_material, material
        return changed

    def reload_token(self) -> None:
        """Read the token again. Raises CredentialsError; the last one stays."""
        self._token = _read_token(self._credentials.token)

    def reload_token_file(self) -> None:
        """The same, but without calling a function, which may be slow or cost something."""
        if isinstance(self._credentials.token, TokenFile):
            self.reload_token()


def _read_tls(tls: TLS | None) -> _TlsMaterial:
    if tls is None:
        return _TlsMaterial(None, None, None)
    material = _TlsMaterial(
        _read("CA", tls.ca_file or ssl.get_default_verify_paths().cafile),
        _read("client certificate", tls.cert_file),
        _read("client key", tls.key_file),
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if tls.ca_file is not None:
        try:
            context.load_verify_locations(cafile=tls.ca_file)
        except (OSError, ValueError):
            raise CredentialsError(f"the CA file {tls.ca_file} has no certificate in PEM format") from None
    if tls.cert_file is not None:
        try:
            # Without a password, Python would ask for one on the terminal.
            context.load_cert_chain(tls.cert_file, tls.key_file, password="")
        except (OSError, ValueError):
            raise CredentialsError(
                f"{tls.cert_file} and {tls.key_file} are not a certificate and its key, unencrypted and in PEM format"
            ) from None
    return material


def _read(what: str, path: str | os.PathLike[str] | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise CredentialsError(f"the {what} file {path} cannot be read: {error.strerror}") from None


def _read_token(token: Token | None) -> str:
    if token is None:
        return ""
    if isinstance(token, str):
        where, text = "the token", token
    elif isinstance(token, TokenFile):
        where = f"the token file {token.path}"
        text = (_read("token", token.path) or b"").decode("ascii", "replace")
    else:
        where = "the function that returns the token"
        try:
            text = token()
        except Exception as error:  # noqa: BLE001  # it is the program's function; the message might contain the token
            raise CredentialsError(f"{where} failed with {type(error).__name__}") from None
        if not isinstance(text, str):
            raise CredentialsError(f"{where} returned {type(text).__name__}, not a text")
    text = text.strip()
    if not (0 < len(text) <= TOKEN_CHARS_MAX and text.isascii() and text.isprintable() and " " not in text):
        raise CredentialsError(f"{where} has no token: one line of printable characters without spaces")
    return text


class _CallDetails(NamedTuple):
    method: str
    timeout: float | None
    metadata: Any
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: Any


class _AddToken(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Adds the token to the metadata of each call and stream."""

    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return continuation(self._with_token(client_call_details), request)

    def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return continuation(self._with_token(client_call_details), request)

    def intercept_stream_stream(
        self, continuation: Any, client_call_details: Any, request_iterator: Any
    ) -> Any:
        return continuation(self._with_token(client_call_details), request_iterator)

    def _with_token(self, details: Any) -> Any:
        metadata = (*(details.metadata or ()), ("authorization", f"Bearer {self._token()}"))
        return _CallDetails(
            details.method,
            details.timeout,
            metadata,
            details.credentials,
            details.wait_for_ready,
            details.compression,
        )


def _is_loopback(address: str) -> bool:
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    try:
        host, _ = split_address(address.removeprefix("dns:").lstrip("/"))
    except ValueError:
        host = address
    ip = parse_ip(host)
    return host.lower() == "localhost" if ip is None else ip.is_loopback


def connect_failure_hint(details: str, *, uses_tls: bool) -> str:
    """Return the hint about TLS that a failed connection gives, without a period; empty if it gives none."""
    if not uses_tls:
        if "Socket closed" in details:
            return "the server closed the connection at once; if it uses TLS, connect with TLS, too"
        return ""
    if "WRONG_VERSION_NUMBER" in details:
        return "the server does not use TLS, so connect without it"
    if "CERTIFICATE_VERIFY_FAILED" in details:
        return "the server's certificate is not signed by an authority that this program trusts"
    if "Hostname Verification" in details:
        return "the server's certificate is for another name than the one in the address"
    if "handshake failed" in details or "Socket closed" in details:
        return "the TLS handshake failed; the server may require a client certificate"
    return ""
