"""Temporal's own worker API, answered from liveness where the server does not implement it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import grpc

from liveness.bridges.temporal import messages
from liveness.bridges.temporal.messages import ListedWorker
from liveness.bridges.temporal.proxy import Call, Interceptor
from liveness.bridges.temporal.wire import Malformed
from liveness.bridges.temporal.worker_entry import ENGINE_LABEL
from liveness.sdk.loop_client import LivenessClient, RpcFailed
from liveness.v1.service_pb2 import DescribeWorkerRequest, ListWorkersRequest, WorkerFilter
from liveness.v1.worker_pb2 import WORKER_STATE_ACTIVE, WORKER_STATUS_STOPPING, Worker

CALL_TIMEOUT_MS = 5_000
PAGE_MAX = 1_000
Answer: TypeAlias = Callable[[bytes], Awaitable[bytes]]
"""Makes an answer for the bytes of a request."""
_RUNNING, _SHUTTING_DOWN = 1, 2


class WorkerApi:
    def __init__(self, client: LivenessClient) -> None:
        self._client = client

    def table(self) -> dict[str, Interceptor]:
        return {
            "ListWorkers": self._list,
            "DescribeWorker": self._describe,
            "CountWorkers": self._count,
        }

    async def _list(self, call: Call) -> bytes:
        return await self._pass_or_answer(call, self._listed)

    async def _describe(self, call: Call) -> bytes:
        return await self._pass_or_answer(call, self._described)

    async def _count(self, call: Call) -> bytes:
        return await self._pass_or_answer(call, self._counted)

    async def _pass_or_answer(self, call: Call, answer: Answer) -> bytes:
        try:
            return await call.pass_on()
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise
            try:
                return await answer(call.request)
            except (Malformed, RpcFailed) as why:
                if isinstance(why, RpcFailed) and why.rpc_failure.code is grpc.StatusCode.NOT_FOUND:
                    await call.context.abort(grpc.StatusCode.NOT_FOUND, "there is no such worker")
                raise error from None

    async def _listed(self, request: bytes) -> bytes:
        namespace, page_size, page_token = messages.read_list_workers(request)
        workers, next_page_token = await self._page(
            namespace, min(max(page_size, 0), PAGE_MAX) or PAGE_MAX, page_token
        )
        return messages.write_listed_workers(workers, next_page_token)

    async def _described(self, request: bytes) -> bytes:
        namespace, key = messages.read_described_worker_key(request)
        answer = await self._client.call(
            lambda endpoint: endpoint.liveness.DescribeWorker,
            DescribeWorkerRequest(namespace=namespace, worker_instance_key=key),
            CALL_TIMEOUT_MS,
        )
        return messages.write_described_worker(_listed_worker(answer.worker))

    async def _counted(self, request: bytes) -> bytes:
        namespace, _, _ = messages.read_list_workers(request)
        count, page_token = 0, ""
        while True:
            workers, page_token = await self._page(namespace, PAGE_MAX, page_token)
            count += len(workers)
            if not page_token:
                return messages.write_worker_count(count)

    async def _page(self, namespace: str, page_size: int, page_token: str) -> tuple[list[ListedWorker], str]:
        """The live workers of a page that are Temporal's."""
        page = await self._client.call(
            lambda endpoint: endpoint.liveness.ListWorkers,
            ListWorkersRequest(
                namespace=namespace,
                filter=WorkerFilter(states=[WORKER_STATE_ACTIVE]),
                page_size=page_size,
                page_token=page_token,
            ),
            CALL_TIMEOUT_MS,
        )
        own = [worker for worker in page.workers if worker.labels.get(ENGINE_LABEL) == "temporal"]
        return [_listed_worker(worker) for worker in own], page.next_page_token


def _listed_worker(worker: Worker) -> ListedWorker:
    return ListedWorker(
        worker_key=worker.worker_instance_key,
        identity=worker.worker_identity,
        task_queue=worker.task_queue,
        build_id=worker.build_id,
        sdk_name=worker.sdk_name,
        sdk_version=worker.sdk_version,
        status=_SHUTTING_DOWN if worker.status == WORKER_STATUS_STOPPING else _RUNNING,
        host_name=worker.host_name,
        process_id=worker.process_id,
        start_time_s=worker.start_time.seconds,
    )
