"""Temporal's own worker API, answered from liveness where the server does not implement it.

The answer is read with the bridge's own credential, so it is for those only whom Temporal serves in the namespace. A server that does
not know the method does not check that; it is asked for its description of the namespace instead.
"""

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
DESCRIBE_NAMESPACE = f"{messages.SERVICE}DescribeNamespace"
PAGE_MAX = 1_000
Answer: TypeAlias = Callable[[bytes], Awaitable[bytes]]
"""Makes an answer for the bytes of a request."""
_RUNNING, _SHUTTING_DOWN = 1, 2
QUERY_CHARS_MAX = 1_000
"""To look for AND in a long row of spaces takes as long as their number squared."""
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
    if len(query) > QUERY_CHARS_MAX:
        raise QueryRefused(f"the bridge answers queries of at most {QUERY_CHARS_MAX} characters")
    for text in _AND.split(query.strip()) if query.strip() else ():
        found = _CONDITION.fullmatch(text.strip())
        if found is None or found[1] not in _QUERIED:
            raise QueryRefused(
                f"the bridge answers queries of NAME = 'VALUE' and NAME != 'VALUE', joined by AND, where NAME is one of {', '.join(_QUERIED)}"
            )
        conditions.append((_QUERIED[found[1]], found[2] == "=", found[3] or found[4] or ""))
    return lambda worker: all((read(worker) == value) is equal for read, equal, value in conditions)


class NotTemporals(Exception):
    """The worker is none of Temporal's."""


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
                if not await _is_served(call, messages.read_namespace(call.request)):
                    raise
                return await answer(call.request)
            except QueryRefused as refused:
                await call.context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(refused))
                raise
            except (Malformed, RpcFailed, NotTemporals) as why:
                is_unknown = isinstance(why, RpcFailed) and why.rpc_failure.code is grpc.StatusCode.NOT_FOUND
                if is_unknown or isinstance(why, NotTemporals):
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
        if not _is_temporals(answer.worker):
            raise NotTemporals
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
        own = filter(_is_temporals, page.workers)
        return [worker for worker in map(_listed_worker, own) if is_listed(worker)], page.next_page_token


async def _is_served(call: Call, namespace: str) -> bool:
    """Whether Temporal serves this caller in the namespace."""
    try:
        await call.ask(DESCRIBE_NAMESPACE, messages.write_describe_namespace(namespace))
    except grpc.aio.AioRpcError:
        return False
    return True


def _is_temporals(worker: Worker) -> bool:
    return worker.labels.get(ENGINE_LABEL) == "temporal"


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
