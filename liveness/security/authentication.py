"""Who calls: a token or a JWT in the `authorization` header, or a client certificate that TLS has verified.

Verifying costs tens of microseconds, so its result is remembered by the header's text until the credential expires, the
tokens or keys change, or the hour ends.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from cryptography import x509

from liveness.clock import Clock
from liveness.domain.errors import Unauthenticated
from liveness.security.grant_rules import CERTIFICATE_CLAIM, GrantRule, grants_for
from liveness.security.http_callers import HttpCallers, first_name
from liveness.security.jwt_verifier import JwtVerifier, looks_like_jwt
from liveness.security.principal import (
    AUTHORIZATION_HEADER,
    CERTIFICATE,
    CERTIFICATE_PREFIX,
    EXPIRED_CERTIFICATE,
    INVALID_TOKEN,
    Caller,
    Principal,
)
from liveness.security.token_table import TokenTable

BEARER = "bearer "
HEADER_CHARS_MAX = 16_384
CACHE_ENTRIES_MAX = 10_000
HOUR_MS = 3_600_000

Metadata = Iterable[tuple[str, str | bytes]]


class CallContext(Protocol):
    """The part of gRPC's context that says who calls."""

    def invocation_metadata(self) -> Any: ...

    def auth_context(self) -> Mapping[str, Iterable[bytes]]: ...


class ClientCertificate(NamedTuple):
    """What a client certificate that TLS has verified says."""

    name: str
    expires_wall_ms: int = 0
    """0 if whoever verified it sees to that."""


class OpenStream:
    """A stream that ends when its caller's credential does."""

    __slots__ = ("caller", "revoked")

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.revoked: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class CallerRegistry(ABC):
    """Remembers who a header belongs to, and which streams are open."""

    def __init__(self, clock: Clock, http_callers: HttpCallers | None = None) -> None:
        """`http_callers`: says whose certificate a call that came over HTTP showed."""
        self._clock = clock
        self._now_ms = clock.wall_ms
        self._http_callers = http_callers
        self._callers: dict[str, tuple[Caller, int]] = {}
        self._streams: set[OpenStream] = set()

    def known(self, metadata: Metadata | None) -> Caller | None:
        """The caller, if its header was verified before. None if it must be verified."""
        header = authorization_of(metadata)
        return None if header is None else self.known_header(header)

    def known_of_batch(self, metadata: Metadata | None) -> Caller | None:
        """The same for a batch of heartbeats, which may have several callers if it was forwarded."""
        return self.known(metadata)

    def known_header(self, header: str) -> Caller | None:
        entry = self._callers.get(header)
        if entry is None or self._now_ms() >= entry[1]:
            return None
        return entry[0]

    @abstractmethod
    async def authenticate(self, context: CallContext) -> Caller:
        """Verify the caller's credential. Raises `Unauthenticated`."""

    async def identify(self, context: CallContext) -> Caller:
        return self.known(context.invocation_metadata()) or await self.authenticate(context)

    def certificate_of(self, context: CallContext) -> ClientCertificate:
        """The client certificate with which the call came. Raises `Unauthenticated` if there is none, or if it has expired since
        its connection began."""
        certificate = self._shown_certificate(context)
        if certificate is None:
            raise Unauthenticated
        if 0 < certificate.expires_wall_ms <= self._clock.wall_ms():
            raise Unauthenticated(why=EXPIRED_CERTIFICATE)
        return certificate

    def _shown_certificate(self, context: CallContext) -> ClientCertificate | None:
        if self._http_callers is not None:
            http_caller = self._http_callers.caller_of(context.invocation_metadata())
            if http_caller is not None:
                # The certificate of the connection is then that of this process.
                name = http_caller.certificate
                return ClientCertificate(name, http_caller.expires_wall_ms) if name else None
        auth_context = context.auth_context()
        shown_name = certificate_name(auth_context)
        return None if shown_name is None else ClientCertificate(shown_name, certificate_expiry(auth_context))

    def remember(self, header: str, caller: Caller, until_wall_ms: int) -> None:
        """At the end of the hour the caller is forgotten, too, because its use is counted by the hour (`noted_hosts`)."""
        if len(self._callers) >= CACHE_ENTRIES_MAX:
            self._callers.clear()
        hour_end_ms = (self._clock.wall_ms() // HOUR_MS + 1) * HOUR_MS
        self._callers[header] = caller, min(until_wall_ms, hour_end_ms)

    def forget_all(self) -> None:
        self._callers.clear()

    def open_stream(self, caller: Caller) -> OpenStream:
        stream = OpenStream(caller)
        self._streams.add(stream)
        return stream

    def close_stream(self, stream: OpenStream) -> None:
        self._streams.discard(stream)

    def open_streams(self) -> list[OpenStream]:
        return list(self._streams)

    def end_streams(self, is_over: Callable[[Caller], bool]) -> None:
        for stream in self.open_streams():
            if not stream.revoked.done() and is_over(stream.caller):
                stream.revoked.set_result(None)


class Authenticator(CallerRegistry):
    """Verifies credentials at a node."""

    def __init__(
        self,
        clock: Clock,
        tokens: TokenTable,
        verifier: JwtVerifier | None = None,
        certificate_rules: Iterable[GrantRule] = (),
        http_callers: HttpCallers | None = None,
    ) -> None:
        super().__init__(clock, http_callers)
        self.tokens = tokens
        self._verifier = verifier
        self._certificate_rules = tuple(rule for rule in certificate_rules if rule.claim == CERTIFICATE_CLAIM)
        self._certificate_callers: dict[ClientCertificate, Caller] = {}
        """The rules that grant something to a certificate never change."""
        tokens.on_change = self.recheck
        tokens.on_poll = self.end_expired_streams

    async def authenticate(self, context: CallContext) -> Caller:
        header = authorization_of(context.invocation_metadata())
        if header is not None:
            return self.authenticate_header(header)
        return self.authenticate_certificate(self.certificate_of(context))

    def identify_header(self, header: str) -> Caller:
        return self.known_header(header) or self.authenticate_header(header)

    def authenticate_certificate(self, certificate: ClientCertificate) -> Caller:
        """`certificate`: one that this server or a frontend has verified."""
        if not self._certificate_rules:
            raise Unauthenticated
        caller = self._certificate_callers.get(certificate)
        if caller is None:
            name, expires_wall_ms = certificate
            grants = grants_for(self._certificate_rules, {CERTIFICATE_CLAIM: name})
            caller = Caller(Principal(CERTIFICATE_PREFIX + name, grants, CERTIFICATE, name, expires_wall_ms))
            if len(self._certificate_callers) >= CACHE_ENTRIES_MAX:
                self._certificate_callers.clear()
            self._certificate_callers[certificate] = caller
        return caller

    def authenticate_header(self, header: str) -> Caller:
        principal = self._verify(header)
        caller = Caller(principal, header)
        self.remember(header, caller, principal.expires_wall_ms)
        return caller

    def _verify(self, header: str) -> Principal:
        if len(header) > HEADER_CHARS_MAX or header[: len(BEARER)].lower() != BEARER:
            raise Unauthenticated
        credential = header[len(BEARER) :].strip()
        if not looks_like_jwt(credential):
            return self.tokens.identify(credential)
        if self._verifier is None:
            raise Unauthenticated(why=INVALID_TOKEN)
        return self._verifier.verify(credential)

    def end_expired_streams(self) -> None:
        """Credentials expire without a change of the tokens or keys."""
        now_ms = self._clock.wall_ms()
        self.end_streams(lambda caller: caller.principal.has_expired(now_ms))

    def recheck(self) -> None:
        """Verify everybody again, since tokens or keys have changed: end the streams of those whose credential is not valid
        any more."""
        self.forget_all()
        for stream in self.open_streams():
            if stream.caller.authorization and not stream.revoked.done():
                try:
                    self.authenticate_header(stream.caller.authorization)
                except Unauthenticated:
                    stream.revoked.set_result(None)


def authorization_of(metadata: Metadata | None) -> str | None:
    """The header; None if there is none. Two of them are refused: another program may have checked the other one."""
    found: str | None = None
    for name, value in metadata or ():
        if name == AUTHORIZATION_HEADER:
            if found is not None or not isinstance(value, str):
                raise Unauthenticated(why="there must be one authorization header")
            found = value
    return found


def certificate_name(auth_context: Mapping[str, Iterable[bytes]]) -> str | None:
    """The URI among the alternative names of a verified client certificate, otherwise its common name."""
    names = [*auth_context.get("x509_subject_alternative_name", ())]
    uris = [name for name in names if b"://" in name]
    return first_name((*uris, *auth_context.get("x509_common_name", ())))


def certificate_expiry(auth_context: Mapping[str, Iterable[bytes]]) -> int:
    """When a verified client certificate expires, in milliseconds. One that does not say so is refused."""
    pem = next(iter(auth_context.get("x509_pem_cert", ())), b"")
    try:
        return _expiry(pem)
    except ValueError:
        raise Unauthenticated from None


@lru_cache(maxsize=CACHE_ENTRIES_MAX)
def _expiry(pem: bytes) -> int:
    """Remembered, because every call on a connection shows the same certificate."""
    return int(x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()) * 1_000
