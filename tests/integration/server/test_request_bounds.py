"""Requests with millions of list elements are refused before anything is parsed or read, and change nothing."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from liveness.app import CLUSTER_SERVICE, SERVICES
from liveness.v1 import service_pb2, worker_pb2
from tests.fuzz.random_requests import NAMES, NAMES_OF
from tests.integration.server.server_harness import NAMESPACE, ServerHarness, refusal

INVALID = grpc.StatusCode.INVALID_ARGUMENT
PROCESSOR_S_MAX = 0.05
"""Of a refusal, the client's part included. These requests took seconds before they were bounded."""
LIVENESS, CLUSTER = "/liveness.v1.LivenessService", "/liveness.v1.ClusterService"


def part(tag: int, content: bytes) -> bytes:
    """A field that holds a message or packed numbers, serialized."""
    size, length = len(content), b""
    while size >= 0x80:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([tag << 3 | 2]) + length + bytes([size]) + content


def states(count: int) -> bytes:
    return part(1, NAMESPACE.encode()) + part(2, part(1, b"\x01" * count))


BOMBS: dict[str, tuple[str, bytes]] = {
    "15 M filter states": (f"{LIVENESS}/ListWorkers", states(15_000_000)),
    "8 M empty heartbeats": (f"{LIVENESS}/RecordWorkerHeartbeats", b"\x12\x00" * 8_000_000),
    "4 M empty capabilities": (
        f"{LIVENESS}/RecordWorkerHeartbeat",
        part(1, NAMESPACE.encode()) + part(2, b"\x0a\x01w" + b"\xca\x01\x00" * 4_000_000),
    ),
    "4 M attempts": (f"{CLUSTER}/FindNotHeld", b"\x0a\x00" * 4_000_000),
}


async def code_of(call: Awaitable[Any]) -> grpc.StatusCode:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
@pytest.mark.parametrize("name", BOMBS)
async def test_a_compressed_request_is_refused_without_being_unpacked_whole(
    sqlite_harness: ServerHarness, name: str, compression: grpc.Compression
) -> None:
    path, request = BOMBS[name]
    call = sqlite_harness.channel_for(path).unary_unary(path)(request, compression=compression)
    # The cluster's own port is never the edge's.
    is_edge = sqlite_harness.server.listener == "edge" and "ClusterService" not in path
    is_unpacked = is_edge and compression is grpc.Compression.Gzip
    refusal = grpc.StatusCode.RESOURCE_EXHAUSTED if is_unpacked else grpc.StatusCode.UNIMPLEMENTED
    assert await code_of(call) is refusal


@pytest.mark.parametrize("name", BOMBS)
async def test_a_request_beyond_all_limits_is_refused_by_grpc(
    sqlite_harness: ServerHarness, name: str
) -> None:
    path, request = BOMBS[name]
    call = sqlite_harness.channel_for(path).unary_unary(path)(request)
    assert await code_of(call) is grpc.StatusCode.RESOURCE_EXHAUSTED


SMALLER_BOMBS: dict[str, tuple[str, bytes]] = {
    "6 M filter states": (f"{LIVENESS}/ListWorkers", states(6_000_000)),
    "65,000 filter states": (f"{LIVENESS}/ListWorkers", states(65_000)),
    "3 M empty heartbeats": (f"{LIVENESS}/RecordWorkerHeartbeats", b"\x12\x00" * 3_000_000),
    "32,000 empty heartbeats": (f"{LIVENESS}/RecordWorkerHeartbeats", b"\x12\x00" * 32_000),
    "1 M empty capabilities": (
        f"{LIVENESS}/RecordWorkerHeartbeat",
        part(1, NAMESPACE.encode()) + part(2, b"\x0a\x01w" + b"\xca\x01\x00" * 1_000_000),
    ),
    "1,001 empty capabilities": (
        f"{LIVENESS}/RecordWorkerHeartbeat",
        part(1, NAMESPACE.encode()) + part(2, b"\x0a\x01w" + b"\xca\x01\x00" * 1_001),
    ),
    "900,000 attempts": (f"{CLUSTER}/FindNotHeld", b"\x0a\x00" * 900_000),
    "30,000 attempts": (f"{CLUSTER}/FindNotHeld", b"\x0a\x00" * 30_000),
}


@pytest.mark.parametrize("name", SMALLER_BOMBS)
async def test_a_request_with_too_many_elements_is_refused_cheaply_and_changes_nothing(
    sqlite_harness: ServerHarness, name: str
) -> None:
    harness = sqlite_harness
    path, request = SMALLER_BOMBS[name]
    before = await harness.dump("shards", "audit")
    used_s = []
    for _ in range(3):
        started_s = time.thread_time()
        refused = await refusal(harness.channel_for(path).unary_unary(path)(request))
        used_s.append(time.thread_time() - started_s)
        assert (refused.code, refused.reason in ("REQUEST_TOO_LARGE", "INVALID_FIELD")) == (INVALID, True)
    # The processor time of the loop, client included; the least of three, because the garbage collector may have run.
    assert min(used_s) < PROCESSOR_S_MAX
    assert await harness.dump("shards", "audit") == before


# -- every list

UNARY_METHODS = [
    method
    for service in (*SERVICES, CLUSTER_SERVICE)
    for method in service.methods
    if not method.client_streaming
]
ELEMENTS = 20_000


def lists_of(kind: Any, path: tuple[FieldDescriptor, ...] = ()) -> Iterator[tuple[FieldDescriptor, ...]]:
    """Yield the way to each list in a message."""
    for field in kind.fields:
        if field.is_repeated:
            yield (*path, field)
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            yield from lists_of(field.message_type, (*path, field))


LISTS = [(method, path) for method in UNARY_METHODS for path in lists_of(method.input_type)]


def request_with(method: MethodDescriptor, path: tuple[FieldDescriptor, ...], count: int) -> Message:
    """A request that is plausible but for `count` empty elements in one list."""
    request = message = GetMessageClass(method.input_type)()
    _fill_names(message)
    for field in path[:-1]:
        message = getattr(message, field.name)
        message = message.add() if field.is_repeated else message
        _fill_names(message)
    field, values = path[-1], getattr(message, path[-1].name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        for number in range(count):
            values[str(number)] = ""
    elif field.message_type is not None:
        for _ in range(count):
            values.add()
    else:
        empty = "" if field.cpp_type == FieldDescriptor.CPPTYPE_STRING else 1
        values.extend([empty] * count)
    return request


def _fill_names(message: Message) -> None:
    names = {**NAMES, **NAMES_OF.get(message.DESCRIPTOR.name, {})}
    for field in message.DESCRIPTOR.fields:
        if field.name in names and not field.is_repeated:
            setattr(message, field.name, names[field.name][0])


@pytest.mark.parametrize(
    ("method", "path"),
    LISTS,
    ids=[f"{method.name}-{'.'.join(field.name for field in path)}" for method, path in LISTS],
)
async def test_every_list_has_a_bound_for_its_elements_empty_ones_included(
    sqlite_harness: ServerHarness, method: MethodDescriptor, path: tuple[FieldDescriptor, ...]
) -> None:
    harness = sqlite_harness
    count = 3 * ELEMENTS if method.name == "Hint" else ELEMENTS
    request = request_with(method, path, count).SerializeToString()
    name = f"/{method.containing_service.full_name}/{method.name}"
    call = harness.channel_for(name).unary_unary(name)
    if method.name == "RecordWorkerHeartbeats" and len(path) > 1:
        [item] = service_pb2.RecordWorkerHeartbeatsResponse.FromString(await call(request)).items
        assert item.status.code == INVALID.value[0]
    else:
        assert await code_of(call(request)) is INVALID


async def test_the_largest_batches_are_served(sqlite_harness: ServerHarness) -> None:
    beats = [
        worker_pb2.WorkerHeartbeat(
            worker_instance_key=f"w{number}",
            session_id="s",
            current_job="j" * 3_000,
            capabilities=[f"c{index}" for index in range(10)],
        )
        for number in range(1_000)
    ]
    items = await sqlite_harness.batch(*beats)
    assert [item.HasField("result") for item in items] == [True] * 1_000
