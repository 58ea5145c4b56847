"""Who calls: a token or a JWT in the `authorization` header, or a client certificate that TLS has verified.

Verifying costs tens of microseconds, so its result is remembered by the header's text until the credential expires, the
tokens or keys change, or the hour ends.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from liveness.clock import Clock
from liveness.domain.errors import Unauthenticated
from liveness.security.grant_rules import CERTIFICATE_CLAIM, GrantRule, grants_for
from liveness.security.http_callers import HttpCallers, first_name
from liveness.security.jwt_verifier import JwtVerifier, looks_like_jwt
from liveness.security.principal import (
    AUTHORIZATION_HEADER,
    CERTIFICATE,
    CERTIFICATE_PREFIX,
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

    def certificate_of(self, context: CallContext) -> str | None:
        """The name in the client certificate with which the call came; None if there is none."""
        if self._http_callers is not None:
            http_caller = self._http_callers.caller_of(context.invocation_metadata())
            if http_caller is not None:
                # The certificate of the connection is then that of this process.
                return http_caller.certificate or None
        return certificate_name(context.auth_context())

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
        self._certificate_callers: dict[str, Caller] = {}
        """By the certificate's name. The rules that grant something to it never change."""
        tokens.on_change = self.recheck
        tokens.on_poll = self.end_expired_streams

    async def authenticate(self, context: CallContext) -> Caller:
        header = authorization_of(context.invocation_metadata())
        if header is not None:
            return self.authenticate_header(header)
        name = self.certificate_of(context)
        if name is None:
            raise Unauthenticated
        return self.authenticate_certificate(name)

    def identify_header(self, header: str) -> Caller:
        return self.known_header(header) or self.authenticate_header(header)

    def authenticate_certificate(self, name: str) -> Caller:
        """`name`: that in a certificate which this server or a frontend has verified."""
        if not self._certificate_rules:
            raise Unauthenticated
        caller = self._certificate_callers.get(name)
        if caller is None:
            grants = grants_for(self._certificate_rules, {CERTIFICATE_CLAIM: name})
            caller = Caller(Principal(CERTIFICATE_PREFIX + name, grants, CERTIFICATE, name))
            if len(self._certificate_callers) >= CACHE_ENTRIES_MAX:
                self._certificate_callers.clear()
            self._certificate_callers[name] = caller
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
        for stream in self.open_streams():
            expires_ms = stream.caller.principal.expires_wall_ms
            if expires_ms and now_ms >= expires_ms and not stream.revoked.done():
                stream.revoked.set_result(None)

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
