"""What HTTP tells gRPC in the same process about its callers: from where they come, and what their certificate names.

HTTP is a client of this process's own listener, at which anybody could claim such things. A key that never leaves the process
tells the calls of HTTP from others. It is no credential: it only proves that what the call says about its origin is true.
"""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Iterable, Mapping
from hmac import compare_digest
from typing import Any

import msgspec

HTTP_CALLER_HEADER = "liveness-http-caller-bin"
KEY_BYTES = 32


class HttpCaller(msgspec.Struct, frozen=True, array_like=True):
    address: str
    certificate: str = ""
    """The name in the client certificate that TLS has verified; empty if there is none."""
    expires_wall_ms: int = 0
    """When the certificate expires."""


class HttpCallers:
    def __init__(self) -> None:
        self._key = secrets.token_bytes(KEY_BYTES)

    def describe(self, address: str, certificate: Mapping[str, Any]) -> tuple[tuple[str, bytes], ...]:
        """What a call of HTTP carries about its caller. `certificate`: as Python's `ssl` describes one that it has verified;
        empty if there is none."""
        return self.metadata(HttpCaller(address, name_in(certificate) or "", expiry_in(certificate)))

    def metadata(self, caller: HttpCaller) -> tuple[tuple[str, bytes], ...]:
        return ((HTTP_CALLER_HEADER, self._key + msgspec.msgpack.encode(caller)),)

    def caller_of(self, metadata: Iterable[tuple[str, str | bytes]] | None) -> HttpCaller | None:
        """Who made the HTTP request; None if the call did not come from HTTP."""
        for name, value in metadata or ():
            if name == HTTP_CALLER_HEADER and isinstance(value, bytes):
                if compare_digest(value[:KEY_BYTES], self._key):
                    return msgspec.msgpack.decode(value[KEY_BYTES:], type=HttpCaller)
                return None
        return None


def name_in(certificate: Mapping[str, Any]) -> str | None:
    """The same name that gRPC's description of the certificate gives (`certificate_name`)."""
    uris = [
        value.encode()
        for kind, value in certificate.get("subjectAltName", ())
        if kind == "URI" and "://" in value
    ]
    common_names = [
        value.encode()
        for names in certificate.get("subject", ())
        for key, value in names
        if key == "commonName"
    ]
    return first_name((*uris, *common_names[:1]))


def expiry_in(certificate: Mapping[str, Any]) -> int:
    """When it expires, in milliseconds; 0 if there is none."""
    return int(ssl.cert_time_to_seconds(certificate["notAfter"])) * 1_000 if certificate else 0


def first_name(names: Iterable[bytes]) -> str | None:
    """The first that is text in one line."""
    for name in names:
        try:
            text = name.decode()
        except UnicodeDecodeError:
            continue
        if text and text.isprintable():
            return text
    return None
