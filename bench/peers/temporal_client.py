"""The commands that need Temporal's own message classes: `bodies COUNT SIZE` and `listed ADDRESS`, answered as JSON."""

from __future__ import annotations

import base64
import json
import sys
from typing import Any

import grpc

from bench.messages import heartbeat

PATH = "/temporal.api.workflowservice.v1.WorkflowService/"
NAMESPACE = "default"


def bodies(count, size):
    from temporalio.api.worker.v1 import WorkerHeartbeat, WorkerHostInfo
    from temporalio.api.workflowservice.v1 import RecordWorkerHeartbeatRequest

    def request(numbers):
        made = []
        for beat in map(heartbeat, numbers):
            host = WorkerHostInfo(host_name=beat.host_name, process_id=beat.process_id)
            made.append(
                WorkerHeartbeat(
                    worker_instance_key=beat.worker_instance_key,
                    worker_identity=beat.worker_identity,
                    host_info=host,
                    task_queue=beat.task_queue,
                    sdk_name=beat.sdk_name,
                    sdk_version=beat.sdk_version,
                    start_time=beat.start_time,
                )
            )
        request = RecordWorkerHeartbeatRequest(namespace=NAMESPACE, identity="bench", worker_heartbeat=made)
        return base64.b64encode(request.SerializeToString()).decode()

    return [request(range(at * size, (at + 1) * size)) for at in range(count)]


def listed(address):
    from temporalio.api.workflowservice.v1 import ListWorkersRequest, ListWorkersResponse

    with grpc.insecure_channel(address) as channel:
        call: Any = channel.unary_unary(PATH + "ListWorkers")
        found, token = 0, b""
        while True:
            request = ListWorkersRequest(namespace=NAMESPACE, page_size=1_000, next_page_token=token)
            answer = ListWorkersResponse.FromString(call(request.SerializeToString(), timeout=30))
            found += len(answer.workers_info)
            token = answer.next_page_token
            if not token:
                return found


if __name__ == "__main__":
    what, *given = sys.argv[1:]
    print(json.dumps(bodies(*map(int, given)) if what == "bodies" else listed(*given)), flush=True)
