"""The other side: a grpc.aio server that parses the same requests and returns the same answers, and does nothing else."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc

from bench.messages import result
from liveness.v1.service_pb2 import (
    RecordWorkerHeartbeatRequest,
    RecordWorkerHeartbeatsRequest,
    RecordWorkerHeartbeatsResponse,
)
from liveness.v1.worker_pb2 import HeartbeatResult

Item = RecordWorkerHeartbeatsResponse.Item


class Noop:
    def __init__(self):
        self._result = result()
        self._batches: dict[int, RecordWorkerHeartbeatsResponse] = {}

    async def unary(self, request, context):
        return self._result

    async def batch(self, request, context):
        size = len(request.heartbeats)
        if size not in self._batches:
            items = [Item(result=self._result)] * size
            self._batches[size] = RecordWorkerHeartbeatsResponse(items=items)
        return self._batches[size]


async def main(listen):
    server = grpc.aio.server()
    noop = Noop()
    handlers: dict[str, Any] = {
        "RecordWorkerHeartbeat": grpc.unary_unary_rpc_method_handler(
            noop.unary, RecordWorkerHeartbeatRequest.FromString, HeartbeatResult.SerializeToString
        ),
        "RecordWorkerHeartbeats": grpc.unary_unary_rpc_method_handler(
            noop.batch,
            RecordWorkerHeartbeatsRequest.FromString,
            RecordWorkerHeartbeatsResponse.SerializeToString,
        ),
    }
    service = grpc.method_handlers_generic_handler("liveness.v1.LivenessService", handlers)
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port(listen)
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
