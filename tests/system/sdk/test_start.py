"""The errors that a program gets when its worker cannot start or cannot continue."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from liveness.sdk import (
    InvalidArgument,
    NamespaceUnknown,
    QuotaReached,
    ServerAway,
    SessionReplaced,
    VersionMismatch,
    Worker,
    WorkerStopped,
)
from liveness.v1.service_pb2 import GetServerInfoRequest, GetServerInfoResponse
from liveness.v1.worker_pb2 import WORKER_STATE_INACTIVE
from tests.system.sdk.server_process import LivenessServer, call_proxy, free_address, running_server, until

ROOT = Path(__file__).resolve().parents[3]


async def test_an_unreachable_server_is_reported() -> None:
    address = free_address()
    with pytest.raises(ServerAway, match=address) as caught:
        await Worker(address, start_timeout=0.5).__aenter__()
    assert "liveness serve" in str(caught.value)


def test_an_unreachable_server_is_reported_to_threads() -> None:
    with pytest.raises(ServerAway):
        Worker(free_address(), start_timeout=0.5).__enter__()


async def test_a_worker_waits_for_a_server_that_starts_a_little_later(own_server: LivenessServer) -> None:
    own_server.end()
    with ThreadPoolExecutor(1) as later:
        starting = later.submit(own_server.start)
        async with Worker(own_server.address, task_queue="queue", start_timeout=60) as worker:
            assert worker.lease_epoch == 1
        starting.result()


async def test_a_server_that_does_not_answer_is_reported(own_server: LivenessServer) -> None:
    with own_server.suspended(), pytest.raises(ServerAway):
        await Worker(own_server.address, start_timeout=0.5).__aenter__()


async def test_an_unserved_namespace_is_reported(tmp_path: Path) -> None:
    with running_server(tmp_path, "--namespaces", "shop,office") as server:
        with pytest.raises(NamespaceUnknown, match="'home'") as caught:
            await Worker(server.address, namespace="home").__aenter__()
        assert "office" in str(caught.value), "it says which are"
        async with Worker(server.address, namespace="shop"):
            pass


class InfoOnlyServer(grpc.GenericRpcHandler):
    """Another kind of server: it implements one call, or none."""

    def __init__(self, info: GetServerInfoResponse | None) -> None:
        self._info = info

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if self._info is None or not details.method.endswith("/GetServerInfo"):
            return None
        info = self._info
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: info,
            request_deserializer=GetServerInfoRequest.FromString,
            response_serializer=GetServerInfoResponse.SerializeToString,
        )


@contextmanager
def another_server(info: GetServerInfoResponse | None) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((InfoOnlyServer(info),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


@pytest.mark.parametrize(
    "info",
    [
        None,
        GetServerInfoResponse(version="0.1.0", api_level=1),
        GetServerInfoResponse(version="9.0.0", api_level=12, api_level_min=7),
    ],
    ids=["older than the question", "older", "newer"],
)
async def test_a_server_of_another_version_is_reported(info: GetServerInfoResponse | None) -> None:
    with another_server(info) as address:
        with pytest.raises(VersionMismatch, match=address) as caught:
            await Worker(address).__aenter__()
        if info is not None:
            assert info.version in str(caught.value)


async def test_a_worker_works_with_a_server_without_streams(server: LivenessServer, namespace: str) -> None:
    with call_proxy(server.address) as proxy:
        proxy.unknown.add("Attach")
        async with Worker(proxy.address, namespace=namespace) as worker:
            session = worker._session
            assert session is not None
            await asyncio.to_thread(until, lambda: session.has_ended)
            with pytest.raises(VersionMismatch, match="Attach"):
                worker._live_session()


async def test_a_full_namespace_is_reported(server: LivenessServer, namespace: str) -> None:
    server.configure(namespace, max_workers=1)
    async with Worker(server.address, namespace=namespace):
        with pytest.raises(QuotaReached):
            await Worker(server.address, namespace=namespace).__aenter__()


async def test_invalid_options_are_reported(server: LivenessServer, namespace: str) -> None:
    with pytest.raises(InvalidArgument, match="worker_instance_key"):
        await Worker(server.address, namespace=namespace, instance_key="\x07").__aenter__()
    with pytest.raises(InvalidArgument, match="lease"):
        await Worker(server.address, namespace=namespace, lease=-1).__aenter__()
    with pytest.raises(InvalidArgument, match="max_concurrent"):
        Worker(server.address, max_concurrent=0)


async def test_another_process_under_the_same_key_ends_this_worker(
    server: LivenessServer, namespace: str
) -> None:
    async with Worker(server.address, namespace=namespace, instance_key="mine", task_queue="queue") as old:
        async with Worker(server.address, namespace=namespace, instance_key="mine", task_queue="queue"):
            with pytest.raises(SessionReplaced, match="mine"):
                await old.run(handle_signals=False)
        assert server.worker(namespace, "mine").state == WORKER_STATE_INACTIVE
        with pytest.raises(SessionReplaced):
            old.bind("a")
    assert server.worker(namespace, "mine").lease_epoch == 2, "the end of the old one touched nothing"


async def test_a_worker_can_be_entered_only_once(server: LivenessServer, namespace: str) -> None:
    worker = Worker(server.address, namespace=namespace)
    with pytest.raises(WorkerStopped):
        worker.bind("a")
    async with worker:
        with pytest.raises(InvalidArgument):
            await worker.__aenter__()
    with pytest.raises(WorkerStopped):
        worker.bind("a")


async def test_a_failed_start_leaves_nothing_behind(server: LivenessServer, namespace: str) -> None:
    """The next worker shares the channel that the failed one used."""
    server.configure(namespace, max_workers=0)
    for _ in range(3):
        with pytest.raises(QuotaReached):
            await Worker(server.address, namespace=namespace).__aenter__()
    server.configure(namespace, max_workers=1)
    async with Worker(server.address, namespace=namespace) as worker:
        key = worker.instance_key
        until(lambda: server.worker(namespace, key).attached)


def test_importing_liveness_loads_no_sdk() -> None:
    check = (
        "import sys, liveness\n"
        "assert not [name for name in sys.modules if name.startswith(('grpc', 'liveness.sdk'))]\n"
        "from liveness import Worker, Client, FencingToken\n"
        "assert Worker.__module__ == 'liveness.sdk.worker'\n"
        "try:\n"
        "    liveness.nonsense\n"
        "except AttributeError as error:\n"
        "    assert 'nonsense' in str(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
