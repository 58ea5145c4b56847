"""Watches over every call: limits of principals, the audit, and what looks like an attack.

`grpc_registration.py` asks it for each method, so that a new method cannot be forgotten: the proto options say which ones are
audited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from functools import lru_cache
from ipaddress import ip_address
from typing import Any
from urllib.parse import unquote

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from liveness.domain.errors import (
    Denied,
    LivenessError,
    NotForwarded,
    PermissionDenied,
    Refused,
    ShardMoved,
    Unauthenticated,
    WorkerKeyOwned,
)
from liveness.routing.forwarding import CALLER_ADDRESS_HEADER, is_local_only
from liveness.rpc.call_metadata import metadata_of
from liveness.rpc.status import code_of
from liveness.rpc_details import parse_details
from liveness.security.audit import OK, AuditLog, is_audited, plain, serving_principal
from liveness.security.http_callers import HttpCallers
from liveness.security.principal import TOKEN, Caller, Principal, caller_address
from liveness.security.principal_limits import PrincipalLimits
from liveness.security.suspicion import SuspicionCounters
from liveness.store.errors import StoreError
from liveness.v1.service_pb2 import AttachResponse

Serve = Callable[[Any], Awaitable[Message | bytes]]

request_bytes: ContextVar[int] = ContextVar("request_bytes", default=0)
"""The size of the request that is being served. The parser sets it, in the task of the call."""
LOCAL = "local"
NOTED_HOSTS_MAX = 200
"""More than the addresses that make a token suspicious."""


class Oversight:
    def __init__(
        self,
        suspicion: SuspicionCounters,
        limits: PrincipalLimits | None = None,
        audit: AuditLog | None = None,
        *,
        limits_anonymous: bool = False,
        is_cluster_port: bool = False,
        http_callers: HttpCallers | None = None,
    ) -> None:
        """`audit`: None in a frontend; nodes record what it forwards. `limits_anonymous`: limit callers that are not asked who
        they are by their address. `is_cluster_port`: calls were forwarded by nodes and frontends, whose metadata is believed. `http_callers`: says who
        made a call that came over HTTP."""
        self.suspicion = suspicion
        self.limits = limits
        self.audit = audit
        self.limits_anonymous = limits_anonymous and limits is not None
        self.is_cluster_port = is_cluster_port
        self.http_callers = http_callers

    def for_cluster_port(self) -> Oversight:
        """The same for calls that other nodes and frontends have forwarded."""
        return Oversight(
            self.suspicion,
            self.limits,
            self.audit,
            limits_anonymous=self.limits_anonymous,
            is_cluster_port=True,
        )

    def note_refused_peer(self, peer: str) -> None:
        """Count a caller of the cluster's port that is neither a node nor a frontend, or does what it may not do."""
        self.suspicion.count_cluster_port_refusal(host_of(peer))

    def method(self, descriptor: MethodDescriptor) -> MethodOversight:
        return MethodOversight(self, descriptor)


class MethodOversight:
    def __init__(self, oversight: Oversight, descriptor: MethodDescriptor) -> None:
        self._suspicion = oversight.suspicion
        self._limits = oversight.limits
        self._audit = oversight.audit
        self._limits_anonymous = oversight.limits_anonymous
        self._is_cluster_port = oversight.is_cluster_port
        self._http_callers = oversight.http_callers
        self._method = f"{descriptor.containing_service.name}/{descriptor.name}"
        self.is_audited = is_audited(descriptor)

    # -- before the call

    def admit(self, caller: Caller, context: Any) -> None:
        """Refuse a call above the principal's limits. A call that was forwarded was counted where it arrived."""
        if self._is_cluster_port:
            return
        peer = context.peer()
        host = host_of(peer)
        if host == LOCAL:
            host = self._origin(context)  # HTTP of a server with TLS comes by a socket of its own
        if host not in caller.noted_hosts:
            self._note_host(caller, host)
        if self._limits is not None:
            self._limits.admit(caller.principal.name, request_bytes.get(), peer)

    def _note_host(self, caller: Caller, host: str) -> None:
        """Count from where a token is used. What was counted is remembered with the caller, for the hour at most."""
        if len(caller.noted_hosts) >= NOTED_HOSTS_MAX:
            caller.noted_hosts.clear()
        caller.noted_hosts.add(host)
        if caller.principal.credential_kind == TOKEN:
            self._suspicion.note_token_use(caller.principal.credential_id, host)

    def admit_anonymous(self, context: Any) -> None:
        """The same for a caller that is not asked who it is."""
        if self._limits_anonymous and not self._is_cluster_port:
            address = self._origin(context)
            if not is_loopback_host(address):
                assert self._limits is not None
                self._limits.admit(address, request_bytes.get(), context.peer())

    def open_stream(self, caller: Caller | None, context: Any) -> AbstractContextManager[None]:
        """Count a stream for as long as it is open, or refuse it."""
        if self._limits is None or self._is_cluster_port:
            return nullcontext()
        if caller is not None:
            return self._limits.open_stream(caller.principal.name)
        if not self._limits_anonymous or is_loopback_host(address := self._origin(context)):
            return nullcontext()
        return self._limits.open_stream(address)

    # -- the audit

    def set_origin(self, context: Any) -> None:
        """Remember from where the call came, for the audit here or at the node to which it is forwarded."""
        caller_address.set(self._origin(context))

    async def serve(self, serve: Serve, context: Any, request: Any) -> Message | bytes:
        """Serve a change by an operator, and record it before it is answered."""
        # The node that was asked first records it; others do their part of the same change.
        if self._audit is None or (self._is_cluster_port and is_local_only(metadata_of(context))):
            return await serve(request)
        principal = serving_principal()
        try:
            answer = await serve(request)
        except asyncio.CancelledError:
            self._audit.record_later(principal, self._method, request, grpc.StatusCode.CANCELLED.name)
            raise
        except LivenessError as error:
            # Denied access is summed. A shard that has moved is served elsewhere, and recorded there.
            if not isinstance(error, Denied | ShardMoved):
                await self._audit.record_change(principal, self._method, request, code_of(error).name)
            raise
        except StoreError:
            self._audit.record_later(principal, self._method, request, grpc.StatusCode.UNAVAILABLE.name)
            raise
        # If the caller hangs up now, the row is written none the less: its writer does not belong to the call.
        await self._audit.record_change(principal, self._method, request, OK)
        return answer

    # -- after the call

    def note_error(self, error: LivenessError, request: Any, context: Any) -> None:
        """Count an error if it is denied access or suspicious. The node that raises it counts it, not those that pass it on."""
        if isinstance(error, Unauthenticated):
            address = self._origin(context)
            self._suspicion.count_failed_sign_in(address)
            # Nobody knows the caller, so that the namespace that it names says nothing.
            self._count_denied(None, address, "", error, 1)
        elif isinstance(error, NotForwarded):
            self._suspicion.count_cluster_port_refusal(host_of(context.peer()))
        elif isinstance(error, Denied | Refused):
            namespace = getattr(request, "namespace", "")
            self._suspicion.count_reasons(_name(), namespace, (error.reason,))
            if isinstance(error, Denied):
                self._count_denied(serving_principal(), self._origin(context), namespace, error, 1)

    def note_denied_items(self, errors: Collection[LivenessError], namespace: str, context: Any) -> None:
        """Count the items of a batch that the caller may not send."""
        self._count_denied(
            serving_principal(), self._origin(context), namespace, next(iter(errors)), len(errors)
        )

    def note_attached(self, message: Any, context: Any) -> None:
        """Count an answer of an Attach stream that refuses a worker."""
        if not isinstance(message, AttachResponse) or not message.attached.HasField("status"):
            return
        namespace, reason = message.attached.namespace, parse_details(message.attached.status).reason
        self._suspicion.count_reasons(_name(), namespace, (reason,))
        if reason in (PermissionDenied.reason, WorkerKeyOwned.reason):
            self._count_denied(serving_principal(), self._origin(context), namespace, Denied(), 1)

    def _origin(self, context: Any) -> str:
        """From where the call came to the cluster. Of a forwarded call, the node or frontend where it arrived says so; of one over
        HTTP, the HTTP server in this process does."""
        if self._is_cluster_port:
            for name, value in metadata_of(context):
                if name == CALLER_ADDRESS_HEADER and isinstance(value, str):
                    return plain(value)
        elif self._http_callers is not None:
            caller = self._http_callers.caller_of(metadata_of(context))
            if caller is not None:
                return caller.address
        return host_of(context.peer())

    def _count_denied(
        self, principal: Principal | None, address: str, namespace: str, error: LivenessError, calls: int
    ) -> None:
        if self._audit is not None:
            self._audit.count_denied(principal, address, self._method, namespace, code_of(error).name, calls)


def _name() -> str:
    principal = serving_principal()
    return "" if principal is None else principal.name


@lru_cache(maxsize=4_096)
def host_of(peer: str) -> str:
    """The host in the name that gRPC gives to the other end: ipv4:HOST:PORT, ipv6:%5BHOST%5D:PORT, or unix:PATH."""
    kind, _, rest = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return LOCAL if kind == "unix" else plain(peer)
    return rest.rpartition(":")[0].removeprefix("[").removesuffix("]")


@lru_cache(maxsize=4_096)
def is_loopback_host(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == LOCAL
