"""No request, however large, takes the event loop for long: others' heartbeats are served in between."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from liveness.security.forwarded_callers import PRINCIPAL_HEADER
from liveness.v1.activity_pb2_grpc import ActivityServiceStub
from liveness.v1.admin_pb2_grpc import AdminServiceStub
from liveness.v1.cluster_pb2_grpc import ClusterServiceStub
from liveness.v1.component_metrics_service_pb2_grpc import ComponentMetricsServiceStub
from liveness.v1.component_service_pb2_grpc import ComponentServiceStub
from liveness.v1.progress_service_pb2_grpc import ProgressServiceStub
from liveness.v1.registry_service_pb2_grpc import RegistryServiceStub
from liveness.v1.service_pb2_grpc import LivenessServiceStub
from tests.fuzz.credentials import ADMIN
from tests.fuzz.fuzzer import TARGETS, Target
from tests.fuzz.largest_requests import LARGE_REQUESTS, NAMESPACE, LargeRequest
from tests.fuzz.loop_steps import STEP_MS_MAX, LoopSteps, Step

RUNS = 3
UNLIMITED = [("grpc.max_receive_message_length", -1)]


def make_stubs(target: Target) -> tuple[dict[str, Any], list[grpc.Channel]]:
    server, caller = target.server, ADMIN if target.shape.asks_callers else None
    public = channel_of(
        server.address, () if caller is None else (("authorization", f"Bearer {caller.text}"),)
    )
    cluster = channel_of(
        server.cluster_address or "",
        () if caller is None else ((PRINCIPAL_HEADER, caller.principal.encoded()),),
    )
    stubs = {
        "Liveness": LivenessServiceStub(public),
        "Admin": AdminServiceStub(public),
        "Activity": ActivityServiceStub(public),
        "Metrics": ComponentMetricsServiceStub(public),
        "Registry": RegistryServiceStub(public),
        "Component": ComponentServiceStub(public),
        "Progress": ProgressServiceStub(public),
        "Cluster": ClusterServiceStub(cluster),
    }
    return stubs, [public, cluster]


def channel_of(address: str, metadata: tuple[tuple[str, str | bytes], ...]) -> grpc.Channel:
    channel = grpc.insecure_channel(address, UNLIMITED)
    return grpc.intercept_channel(channel, WithMetadata(metadata)) if metadata else channel


class WithMetadata(grpc.UnaryUnaryClientInterceptor):
    def __init__(self, metadata: tuple[tuple[str, str | bytes], ...]) -> None:
        self._metadata = metadata

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(details._replace(metadata=self._metadata), request)


async def send_all(target: Target, chosen: Sequence[LargeRequest], run: int) -> dict[str, Step]:
    """Let a client in another thread send the requests, one after the other. Returns the longest step while each was served."""
    stubs, channels = make_stubs(target)
    longest: dict[str, Step] = {}
    loop = asyncio.get_running_loop()
    gc.collect()
    gc.disable()  # a full collection in the middle of a step would count as a part of it
    try:
        with ThreadPoolExecutor(1) as client, LoopSteps() as steps:
            for large in chosen:
                steps.clear()

                def send(large: LargeRequest = large) -> None:
                    getattr(stubs[large.service], large.method)(large.build(run), timeout=120)

                await loop.run_in_executor(client, send)
                longest[large.name] = max(steps.slow, default=Step(0, ""))
    finally:
        gc.enable()
        for channel in channels:
            channel.close()
    return longest


async def check_all(target: Target) -> None:
    """What took long is sent again, twice: the machine may have been busy."""
    await target.lift_rate_limits(NAMESPACE)
    left: Sequence[LargeRequest] = LARGE_REQUESTS
    too_long: dict[str, Step] = {}
    for run in range(RUNS):
        longest = await send_all(target, left, run)
        too_long = {name: step for name, step in longest.items() if step.ms > STEP_MS_MAX}
        if not too_long:
            break
        left = [large for large in LARGE_REQUESTS if large.name in too_long or large.makes_state]
    assert not too_long
    await target.check_serves()


@pytest.mark.parametrize("dialect", ["sqlite"])
async def test_no_large_request_takes_the_loop_for_long(target: Target) -> None:
    await check_all(target)


@pytest.mark.parametrize("dialect", ["sqlite"])
async def test_no_large_request_takes_the_loop_for_long_where_callers_are_asked(url: str) -> None:
    """Answers are searched for what their caller may not see."""
    target = await Target(url, TARGETS["authentication"]).start()
    try:
        await check_all(target)
    finally:
        await target.stop()


@pytest.mark.crash_long
@pytest.mark.parametrize("dialect", ["postgresql"])
async def test_no_large_request_takes_the_loop_for_long_on_postgres(target: Target) -> None:
    await check_all(target)
