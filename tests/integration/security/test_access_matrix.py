"""Every method, called with every role about its own namespace, another one, all and none: generated from the proto options."""

from __future__ import annotations

from typing import Any, Protocol

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from liveness.frontend.app import SERVICES as PUBLIC_SERVICES
from liveness.v1 import access_pb2, service_pb2
from tests.integration.security.auth_harness import AuthHarness
from tests.integration.server.server_harness import Refusal, unpack, unpack_status

OWN, OTHER = "own", "other"
ROLES = ("worker", "producer", "reader", "operator", "admin")
INCLUDED = {
    "worker": {"WORKER"},
    "producer": {"PRODUCER"},
    "reader": {"READER"},
    "operator": {"OPERATOR", "READER"},
    "admin": {"WORKER", "PRODUCER", "READER", "OPERATOR", "ADMIN"},
}
METHODS = [method for service in PUBLIC_SERVICES for method in service.methods]


def request_about(method: MethodDescriptor, namespace: str) -> Any:
    if method.client_streaming:
        attach = service_pb2.AttachRequest.Attach(
            namespace=namespace, worker_instance_key="w", session_id="s"
        )
        return service_pb2.AttachRequest(attach=attach)
    request: Any = GetMessageClass(method.input_type)()
    fields = method.input_type.fields_by_name
    if "namespace" in fields:
        request.namespace = namespace
    if "worker_instance_key" in fields:
        request.worker_instance_key = "w"
    if "heartbeat" in fields:
        request.heartbeat.worker_instance_key = "w"
    if "heartbeats" in fields:
        request.heartbeats.add(worker_instance_key="w")
    if "wait" in fields:
        request.wait.SetInParent()
    return request


class Connected(Protocol):
    channel: Any


async def call(harness: Connected, method: MethodDescriptor, request: Any, token: str | None) -> str:
    """The reason for which the call was refused; OK if it was not."""
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    path = f"/{method.containing_service.full_name}/{method.name}"
    kinds = {
        (False, False): harness.channel.unary_unary,
        (False, True): harness.channel.unary_stream,
        (True, True): harness.channel.stream_stream,
    }
    rpc = kinds[method.client_streaming, method.server_streaming](
        path,
        request_serializer=type(request).SerializeToString,
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )
    try:
        if method.client_streaming:
            stream = rpc(metadata=metadata, timeout=10)
            await stream.write(request)
            answer = await stream.read()
            stream.cancel()
            return (
                reason_of(unpack_status(answer.attached.status))
                if answer.attached.HasField("status")
                else "OK"
            )
        if method.server_streaming:
            stream = rpc(request, metadata=metadata, timeout=10)
            await stream.read()
            stream.cancel()
            return "OK"
        answer = await rpc(request, metadata=metadata, timeout=10)
        if method.name == "RecordWorkerHeartbeats" and answer.items[0].HasField("status"):
            return reason_of(unpack_status(answer.items[0].status))
    except grpc.aio.AioRpcError as error:
        return reason_of(unpack(error))
    return "OK"


def reason_of(refused: Refusal) -> str:
    if refused.code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED):
        raise AssertionError(refused)
    return refused.reason


def is_allowed(method: MethodDescriptor, role: str, granted: str, namespace: str) -> bool:
    access = method.GetOptions().Extensions[access_pb2.access]
    wanted = {access_pb2.Role.Name(number).removeprefix("ROLE_") for number in access.role}
    has_role = bool(wanted & INCLUDED[role])
    scope = access_pb2.Scope.Name(access.scope).removeprefix("SCOPE_")
    covers = granted in ("*", namespace)
    if scope in ("NAMESPACE", "WORKER"):
        return has_role and covers
    if scope == "SERVER":
        return has_role and granted == "*"
    if scope == "LOADED":
        return has_role
    assert scope == "CALLER"
    return "namespace" not in method.input_type.fields_by_name or not namespace or covers


@pytest.mark.parametrize("granted", [OWN, "*"])
@pytest.mark.parametrize("role", ROLES)
async def test_each_role_may_do_what_the_options_say_and_nothing_else(
    auth: AuthHarness, role: str, granted: str
) -> None:
    token = (await auth.create_token(f"{role}-user", f"{role}:{granted}")).secret
    wrong = []
    for method in METHODS:
        for namespace in (OWN, OTHER, ""):
            reason = await call(auth, method, request_about(method, namespace), token)
            allowed = is_allowed(method, role, granted, namespace)
            if (reason != "PERMISSION_DENIED") != allowed or reason == "UNAUTHENTICATED":
                wrong.append((method.full_name, namespace, reason, allowed))
    assert wrong == []


@pytest.mark.parametrize("token", [None, "", "nonsense", "lvt_aaaaaaaaaaaa_" + "A" * 43, "a.b.c"])
async def test_nobody_does_anything_without_a_valid_credential(auth: AuthHarness, token: str | None) -> None:
    for method in METHODS:
        try:
            reason = await call(auth, method, request_about(method, OWN), token)
        except AssertionError as error:
            raise AssertionError(method.full_name) from error
        assert reason == "UNAUTHENTICATED", method.full_name


def test_every_method_declares_who_may_call_it() -> None:
    from liveness.app import SERVICES
    from liveness.security.authorization import access_rule

    for service in SERVICES:
        for method in service.methods:
            access_rule(method)  # raises for one without
            assert not (method in METHODS and 6 in method.GetOptions().Extensions[access_pb2.access].role)
