"""Temporal's own worker API, answered from liveness where the server does not implement it."""

from __future__ import annotations

import re
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
_STATUS_NAMES = {_RUNNING: "Running", _SHUTTING_DOWN: "ShuttingDown"}
_CONDITION = re.compile(r"""(\w+)\s*(=|!=)\s*(?:'([^']*)'|"([^"]*)")""")
_AND = re.compile(r"\s+AND\s+", re.IGNORECASE)
_QUERIED: dict[str, Callable[[ListedWorker], str]] = {
    "WorkerInstanceKey": lambda worker: worker.worker_key,
    "WorkerIdentity": lambda worker: worker.identity,
    "HostName": lambda worker: worker.host_name,
    "TaskQueue": lambda worker: worker.task_queue,
    "BuildId": lambda worker: worker.build_id,
    "SdkName": lambda worker: worker.sdk_name,
    "SdkVersion": lambda worker: worker.sdk_version,
    "Status": lambda worker: _STATUS_NAMES[worker.status],
}
IsListed: TypeAlias = Callable[[ListedWorker], bool]


class QueryRefused(Exception):
    """The message says what a query may be."""


def parse_query(query: str) -> IsListed:
    """Which workers a query of Temporal's means. Raises QueryRefused: all workers would be a wrong answer."""
    conditions = []
    for text in _AND.split(query.strip()) if query.strip() else ():
        found = _CONDITION.fullmatch(text.strip())
        if found is None or found[1] not in _QUERIED:
            raise QueryRefused(
                f"the bridge answers queries of NAME = 'VALUE' and NAME != 'VALUE', joined by AND, where NAME is one of {', '.join(_QUERIED)}"
            )
        conditions.append((_QUERIED[found[1]], found[2] == "=", found[3] or found[4] or ""))
    return lambda worker: all((read(worker) == value) is equal for read, equal, value in conditions)


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
            except QueryRefused as refused:
                await call.context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(refused))
                raise
            except (Malformed, RpcFailed) as why:
                if isinstance(why, RpcFailed) and why.rpc_failure.code is grpc.StatusCode.NOT_FOUND:
                    await call.context.abort(grpc.StatusCode.NOT_FOUND, "there is no such worker")
                raise error from None

    async def _listed(self, request: bytes) -> bytes:
        namespace, page_size, page_token, query = messages.read_list_workers(request)
        workers, next_page_token = await self._page(
            namespace, parse_query(query), min(max(page_size, 0), PAGE_MAX) or PAGE_MAX, page_token
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
        namespace, query = messages.read_count_workers(request)
        is_counted = parse_query(query)
        count, page_token = 0, ""
        while True:
            workers, page_token = await self._page(namespace, is_counted, PAGE_MAX, page_token)
            count += len(workers)
            if not page_token:
                return messages.write_worker_count(count)

    async def _page(
        self, namespace: str, is_listed: IsListed, page_size: int, page_token: str
    ) -> tuple[list[ListedWorker], str]:
        """The live workers of a page that are Temporal's. A query makes pages shorter, not fewer."""
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
        return [worker for worker in map(_listed_worker, own) if is_listed(worker)], page.next_page_token


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
