"""The guard in front of every handler: it finds out who calls, asks `authorize`, and redacts the answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Coroutine, Mapping
from typing import Any, NamedTuple, Protocol

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from liveness.domain.errors import LivenessError, MalformedRequest
from liveness.routing.routing_rules import rule_of
from liveness.rpc.call_metadata import metadata_of
from liveness.rpc.status import status_of
from liveness.security.authentication import CallContext, Metadata
from liveness.security.authorization import access_rule, authorize, authorize_worker, denied_items
from liveness.security.principal import Caller, Principal, current_caller
from liveness.security.redaction import has_redacted_fields, redact
from liveness.security.refused_request import RefusedRequest
from liveness.security.revocation import StreamRegistry, unless_revoked, until_revoked
from liveness.v1.service_pb2 import RecordWorkerHeartbeatsRequest, RecordWorkerHeartbeatsResponse


class Authentication(StreamRegistry, Protocol):
    def known(self, metadata: Metadata) -> Caller | None: ...

    def known_of_batch(self, metadata: Metadata) -> Caller | None: ...

    async def authenticate(self, context: CallContext) -> Caller: ...


class MethodGuard:
    """Guards one method."""

    def __init__(self, authentication: Authentication, method: MethodDescriptor) -> None:
        self.rule = access_rule(method)
        self._authentication = authentication
        self.known = authentication.known_of_batch if self.rule.is_batch else authentication.known
        self.authenticate = authentication.authenticate
        self._redacts = has_redacted_fields(method.output_type)
        self.may_wait_long = rule_of(method.containing_service.name, method.name).wait_ms_max > 0
        """Whether its calls are long polls, which end with the caller's credential as streams do."""

    async def identify(self, context: CallContext) -> Caller:
        """Returns the caller, which handlers find in `current_caller`."""
        caller = self.known(metadata_of(context)) or await self.authenticate(context)
        current_caller.set(caller)
        return caller

    def authorize(self, caller: Caller, request: Any) -> None:
        authorize(caller.principal, self.rule, request)

    def split_batch(self, caller: Caller, request: Any) -> RefusedItems | None:
        """None if nothing of the request is refused."""
        refused = denied_items(caller.principal, self.rule, request)
        return RefusedItems(request, refused) if refused else None

    def redact(self, answer: Any, principal: Principal) -> Any:
        """Bytes were forwarded, and redacted by the node that answered, or contain nothing to redact."""
        if self._redacts and isinstance(answer, Message):
            redact(answer, principal)
        return answer

    # -- streams and long polls

    def unless_revoked(self, serving: Coroutine[Any, Any, Any], caller: Caller) -> Awaitable[Any]:
        return unless_revoked(self._authentication, serving, caller)

    def until_revoked(self, messages: AsyncIterator[Any], caller: Caller) -> AsyncIterator[Any]:
        return until_revoked(self._authentication, messages, caller)

    async def checked(self, requests: AsyncIterator[Any], caller: Caller) -> AsyncIterator[Any]:
        """The requests of an Attach stream; those that the caller may not make become a `RefusedRequest`."""
        async for request in self.until_revoked(requests, caller):
            yield request if isinstance(request, MalformedRequest) else self._check_one(request, caller)

    def _check_one(self, request: Any, caller: Caller) -> Any:
        kind = request.WhichOneof("request")
        if kind not in ("attach", "detach"):
            return request
        worker = getattr(request, kind)
        try:
            authorize_worker(caller.principal, self.rule, worker.namespace, worker.worker_instance_key)
        except LivenessError as error:
            return RefusedRequest(request, error)
        return request


class RefusedItems(NamedTuple):
    """A batch of heartbeats, and those of them that the caller may not send."""

    request: RecordWorkerHeartbeatsRequest
    refused: Mapping[int, LivenessError]

    def allowed(self) -> RecordWorkerHeartbeatsRequest:
        beats = [
            beat for position, beat in enumerate(self.request.heartbeats) if position not in self.refused
        ]
        return RecordWorkerHeartbeatsRequest(namespace=self.request.namespace, heartbeats=beats)

    def merge(self, answer: bytes) -> RecordWorkerHeartbeatsResponse:
        """The answer to the whole batch, from the answer to the items that were allowed."""
        answered = iter(RecordWorkerHeartbeatsResponse.FromString(answer).items)
        response = RecordWorkerHeartbeatsResponse()
        for position in range(len(self.request.heartbeats)):
            if (error := self.refused.get(position)) is not None:
                response.items.add().status.CopyFrom(status_of(error))
            else:
                response.items.append(next(answered))
        return response
