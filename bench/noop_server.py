"""The other side: a grpc.aio server that parses the same requests and gives the same answers, doing nothing."""

from __future__ import annotations

import asyncio
import sys

import grpc

from bench.messages import result
from liveness.v1.service_pb2 import RecordWorkerHeartbeatsResponse
from liveness.v1.service_pb2_grpc import LivenessServiceServicer, add_LivenessServiceServicer_to_server

Item = RecordWorkerHeartbeatsResponse.Item


class Noop(LivenessServiceServicer):
    def __init__(self):
        self._result = result()
        self._batches = {}

    async def RecordWorkerHeartbeat(self, request, context):  # noqa: N802  # the contract's name
        return self._result

    async def RecordWorkerHeartbeats(self, request, context):  # noqa: N802
        size = len(request.heartbeats)
        if size not in self._batches:
            items = [Item(result=self._result)] * size
            self._batches[size] = RecordWorkerHeartbeatsResponse(items=items)
        return self._batches[size]


async def main(listen):
    server = grpc.aio.server()
    add_LivenessServiceServicer_to_server(Noop(), server)
    port = server.add_insecure_port(listen)
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
