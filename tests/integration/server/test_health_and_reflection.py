"""The health and reflection services that gRPC clients and load balancers expect."""

from __future__ import annotations

from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from liveness.server.health import Health
from tests.integration.server.server_harness import ServerHarness, refusal

SERVICES = ("liveness.v1.LivenessService", "liveness.v1.AdminService")


async def test_the_server_and_each_service_report_serving(sqlite_harness: ServerHarness) -> None:
    stub: Any = health_pb2_grpc.HealthStub(sqlite_harness.channel)
    for service in ("", *SERVICES):
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    refused = await refusal(stub.Check(health_pb2.HealthCheckRequest(service="other")))
    assert refused.code is grpc.StatusCode.NOT_FOUND


async def test_a_stopping_server_reports_not_serving_first(sqlite_harness: ServerHarness) -> None:
    stub: Any = health_pb2_grpc.HealthStub(sqlite_harness.channel)
    stream = stub.Watch(health_pb2.HealthCheckRequest())
    assert (await stream.read()).status == health_pb2.HealthCheckResponse.SERVING
    await sqlite_harness.server._health.enter_graceful_shutdown()
    assert (await stream.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    stream.cancel()


async def listed(harness: ServerHarness) -> list[str]:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(harness.channel)
    stream = stub.ServerReflectionInfo()
    await stream.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    answer = await stream.read()
    stream.cancel()
    return [service.name for service in answer.list_services_response.service]


async def test_reflection_lists_the_services(sqlite_harness: ServerHarness) -> None:
    assert set(await listed(sqlite_harness)) >= {*SERVICES, "grpc.health.v1.Health"}


async def test_reflection_can_be_switched_off(sqlite_harness: ServerHarness) -> None:
    await sqlite_harness.restart(reflection=False)
    assert (await refusal(listed(sqlite_harness))).code is grpc.StatusCode.UNIMPLEMENTED


async def test_a_status_change_during_an_answer_is_reported() -> None:
    health = Health(())
    health.serve()
    watching: Any = health.Watch(health_pb2.HealthCheckRequest(), None)  # type: ignore[arg-type]
    assert (await anext(watching)).status == health_pb2.HealthCheckResponse.SERVING
    await health.enter_graceful_shutdown()
    assert (await anext(watching)).status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert [answer async for answer in watching] == []
