"""A real Temporal server, liveness, bridges and workers, each a process of its own."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import urlopen
from uuid import uuid4

import grpc
from google.protobuf.duration_pb2 import Duration
from temporalio.api.common.v1 import (
    ActivityType,
    Payload,
    Payloads,
    RetryPolicy,
    SearchAttributes,
    WorkflowExecution,
    WorkflowType,
)
from temporalio.api.enums.v1 import HistoryEventFilterType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import request_response_pb2 as requests
from temporalio.api.workflowservice.v1.service_pb2_grpc import WorkflowServiceStub

from liveness.bridges.temporal.settings import DEFAULT_INTERVAL_MS
from liveness.bridges.temporal.worker_entry import INTERVAL_LABEL, NO_HEARTBEATS
from liveness.v1.activity_pb2 import ACTIVITY_STATE_COMPLETED, DescribeActivityRequest, ListActivitiesRequest
from liveness.v1.activity_pb2_grpc import ActivityServiceStub
from liveness.v1.service_pb2 import DescribeWorkerRequest, ListWorkersRequest, WorkerFilter
from liveness.v1.service_pb2_grpc import LivenessServiceStub
from liveness.v1.worker_pb2 import Worker
from tests.free_ports import free_port
from tests.integration.telemetry.exposition import Exposition
from tests.system.cli.server_processes import environment, liveness_command

PROGRAM = Path(__file__).with_name("worker_program.py")
LIMIT_S = 60
"""For everything that must happen some time, on a machine that may be busy."""
NAMESPACE = "default"
RESCUE_QUEUE = "temporal-rescue"
UNTOLD_INTERVAL = f"{DEFAULT_INTERVAL_MS}ms"
"""What a bridge assumes until the second heartbeat of a worker."""


def temporal_command() -> str:
    return str(Path(sys.executable).with_name("temporal"))


class Process:
    """A child whose lines are read as they come."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.command = command
        self._folder = folder
        self.lines: queue.Queue[str] = queue.Queue()
        self._errors = (folder / f"{uuid4().hex}.log").open("w")
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self.lines.put(line)

    def wait_line(self, wanted: Callable[[str], bool]) -> str:
        deadline = time.monotonic() + LIMIT_S
        seen: list[str] = []
        while True:
            try:
                line = self.lines.get(timeout=max(deadline - time.monotonic(), 0.01))
            except queue.Empty:
                log = Path(self._errors.name).read_text()[-3_000:]
                raise AssertionError(f"{self.command}: no such line in {seen}; log: {log}") from None
            if wanted(line):
                return line
            seen.append(line)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT_S)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
        self._reader.join(LIMIT_S)
        self._errors.close()


class WorkerProcess(Process):
    def __init__(self, address: str, task_queue: str, folder: Path, **options: Any) -> None:
        super().__init__([sys.executable, str(PROGRAM), address, task_queue, json.dumps(options)], folder)

    def wait_event(self, event: str, **fields: Any) -> dict[str, Any]:
        def wanted(line: str) -> bool:
            told = json.loads(line) if line.startswith("{") else {}
            return {"event": event, **fields}.items() <= told.items()

        found: dict[str, Any] = json.loads(self.wait_line(wanted))
        return found


class Temporal:
    """What tests ask of the server, by plain calls: the SDK's own client is for subprocesses."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = grpc.insecure_channel(address)
        self.stub = WorkflowServiceStub(self.channel)

    def start(self, plan: dict[str, Any], *, flows: str, liveness: str = "") -> str:
        """Start a workflow. `liveness`: the value of its search attribute of that name."""
        workflow_id = f"run-{uuid4().hex[:12]}"
        payload = Payload(metadata={"encoding": b"json/plain"}, data=json.dumps(plan).encode())
        self.stub.StartWorkflowExecution(
            requests.StartWorkflowExecutionRequest(
                namespace=NAMESPACE,
                workflow_id=workflow_id,
                workflow_type=WorkflowType(name="Run"),
                task_queue=TaskQueue(name=flows),
                input=Payloads(payloads=[payload]),
                identity="tests",
                request_id=uuid4().hex,
                search_attributes=_search_attributes(liveness) if liveness else None,
            ),
            timeout=LIMIT_S,
        )
        return workflow_id

    def wait_closed(self, workflow_id: str, limit_s: float = LIMIT_S) -> HistoryEvent:
        """Return the last event of the workflow."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            try:
                answer = self.stub.GetWorkflowExecutionHistory(
                    requests.GetWorkflowExecutionHistoryRequest(
                        namespace=NAMESPACE,
                        execution=WorkflowExecution(workflow_id=workflow_id),
                        wait_new_event=True,
                        history_event_filter_type=HistoryEventFilterType.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT,
                    ),
                    timeout=LIMIT_S,
                )
            except grpc.RpcError:
                time.sleep(0.1)  # the server, or a bridge, is just away
                continue
            if answer.history.events:
                return answer.history.events[-1]
        raise AssertionError(f"{workflow_id} did not end: {self.describe(workflow_id).pending_activities}")

    def result(self, workflow_id: str, limit_s: float = LIMIT_S) -> list[str]:
        event = self.wait_closed(workflow_id, limit_s)
        assert event.HasField("workflow_execution_completed_event_attributes"), event
        completed = event.workflow_execution_completed_event_attributes
        found: list[str] = json.loads(completed.result.payloads[0].data)
        return found

    def start_standalone(self, task_queue: str, spec: dict[str, Any], maximum_attempts: int) -> str:
        """Start an activity without a workflow."""
        activity_id = f"alone-{uuid4().hex[:12]}"
        payload = Payload(metadata={"encoding": b"json/plain"}, data=json.dumps(spec).encode())
        self.stub.StartActivityExecution(
            requests.StartActivityExecutionRequest(
                namespace=NAMESPACE,
                activity_id=activity_id,
                activity_type=ActivityType(name="work"),
                task_queue=TaskQueue(name=task_queue),
                input=Payloads(payloads=[payload]),
                start_to_close_timeout=Duration(seconds=600),
                retry_policy=RetryPolicy(maximum_attempts=maximum_attempts),
                identity="tests",
                request_id=uuid4().hex,
            ),
            timeout=LIMIT_S,
        )
        return activity_id

    def standalone_result(self, activity_id: str) -> str:
        request = requests.PollActivityExecutionRequest(namespace=NAMESPACE, activity_id=activity_id)
        answer = self.stub.PollActivityExecution(request, timeout=LIMIT_S)
        found: str = json.loads(answer.outcome.result.payloads[0].data)
        return found

    def describe(self, workflow_id: str) -> requests.DescribeWorkflowExecutionResponse:
        return self.stub.DescribeWorkflowExecution(
            requests.DescribeWorkflowExecutionRequest(
                namespace=NAMESPACE, execution=WorkflowExecution(workflow_id=workflow_id)
            ),
            timeout=LIMIT_S,
        )

    def cancel(self, workflow_id: str) -> None:
        self.stub.RequestCancelWorkflowExecution(
            requests.RequestCancelWorkflowExecutionRequest(
                namespace=NAMESPACE, workflow_execution=WorkflowExecution(workflow_id=workflow_id)
            ),
            timeout=LIMIT_S,
        )


def _search_attributes(liveness: str) -> SearchAttributes:
    metadata = {"encoding": b"json/plain", "type": b"Keyword"}
    payload = Payload(metadata=metadata, data=json.dumps(liveness).encode())
    return SearchAttributes(indexed_fields={"liveness": payload})


class Liveness:
    """What tests ask of liveness."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = grpc.insecure_channel(address)
        self.stub = LivenessServiceStub(self._channel)
        self.activities_stub = ActivityServiceStub(self._channel)

    def workers(self, task_queue: str) -> list[Worker]:
        answer = self.stub.ListWorkers(
            ListWorkersRequest(namespace=NAMESPACE, filter=WorkerFilter(task_queue=task_queue)),
            timeout=LIMIT_S,
        )
        return list(answer.workers)

    def worker_of(self, process: Process, task_queue: str) -> Worker | None:
        """The worker in this process, once its first heartbeat has told so."""
        pid = str(process.process.pid)
        found = [worker for worker in self.workers(task_queue) if worker.process_id == pid]
        return self.worker(found[0].worker_instance_key) if found else None

    def rescues(self, workflow_id: str) -> list[str]:
        """The outcomes of the rescues of a workflow that are over."""
        listed = self.activities_stub.ListActivities(
            ListActivitiesRequest(namespace=NAMESPACE, page_size=1_000), timeout=LIMIT_S
        )
        outcomes = []
        for activity in listed.activities:
            if activity.id.workflow_id == workflow_id and activity.state == ACTIVITY_STATE_COMPLETED:
                request = DescribeActivityRequest(namespace=NAMESPACE, id=activity.id)
                described = self.activities_stub.DescribeActivity(request, timeout=LIMIT_S)
                outcomes.append(described.activity.result.decode())
        return outcomes

    def worker(self, key: str) -> Worker:
        request = DescribeWorkerRequest(namespace=NAMESPACE, worker_instance_key=key)
        return self.stub.DescribeWorker(request, timeout=LIMIT_S).worker


def eventually(condition: Callable[[], Any], what: str) -> Any:
    """Wait for a state that another process reaches without telling."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        try:
            if found := condition():
                return found
        except grpc.RpcError:
            pass  # a process that is just restarting
        time.sleep(0.02)
    raise AssertionError(what)


@contextmanager
def temporal_server(folder: Path, port: int | None = None, database: Path | None = None) -> Iterator[Process]:
    process = start_temporal(folder, port or free_port(), database)
    try:
        yield process
    finally:
        process.stop()


def start_temporal(folder: Path, port: int, database: Path | None = None) -> Process:
    command = [temporal_command(), "server", "start-dev", "--headless", "--ip", "127.0.0.1"]
    command += ["--port", str(port), "--log-level", "error"]
    command += ["--search-attribute", "liveness=Keyword", "--search-attribute", "CustomKeywordField=Keyword"]
    command += [] if database is None else ["--db-filename", str(database)]
    process = Process(command, folder)
    address = f"127.0.0.1:{port}"
    stub = WorkflowServiceStub(grpc.insecure_channel(address))
    eventually(
        lambda: stub.DescribeNamespace(requests.DescribeNamespaceRequest(namespace=NAMESPACE), timeout=5),
        "Temporal does not start",
    )
    return process


def start_liveness(folder: Path, port: int, *flags: str) -> Process:
    process = Process(
        liveness_command("serve", "--listen", f"127.0.0.1:{port}", "--shards", "2", *flags), folder
    )
    process.wait_line(lambda line: "listening on" in line)
    return process


def start_bridge(folder: Path, port: int, upstream: str, liveness: str, *flags: str) -> Process:
    command = liveness_command("bridge", "temporal", "--upstream", upstream, "--address", liveness)
    process = Process([*command, "--listen", f"127.0.0.1:{port}", *flags], folder)
    process.wait_line(lambda line: "listening on" in line)
    return process


def _free_ports(count: int) -> list[int]:
    """Different ones: none is taken before all are chosen."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return list(ports)


def plan(task_queue: str, *activities: dict[str, Any], **options: Any) -> dict[str, Any]:
    """The input of the workflow `Run`."""
    return {"task_queue": task_queue, "activities": activities, **options}


def stuck(name: str, until: Path, **options: Any) -> dict[str, Any]:
    """An activity whose first attempt does not end before the file `until` exists."""
    return {"name": name, "stuck": [1], "until": str(until), **options}


class Stage:
    """Temporal, liveness, a bridge, and the processes that a test starts beside them."""

    def __init__(self, folder: Path, temporal: Temporal, *bridge_flags: str, bridge_port: int = 0) -> None:
        self.folder = folder
        self.temporal = temporal
        self.bridge_flags = bridge_flags
        self.liveness_port, self._metrics_port, any_port = _free_ports(3)
        self.bridge_port = bridge_port or any_port
        self.liveness_process = self.start_liveness()
        self.liveness = Liveness(f"127.0.0.1:{self.liveness_port}")
        self.bridge = self.start_bridge()
        self.address = f"127.0.0.1:{self.bridge_port}"

    def start_bridge(self) -> Process:
        flags = ("--metrics", f"127.0.0.1:{self._metrics_port}", *self.bridge_flags)
        return start_bridge(
            self.folder, self.bridge_port, self.temporal.address, self.liveness.address, *flags
        )

    def bindings(self) -> dict[str, float]:
        """How many hand-outs the bridge has recorded, by what handed out."""
        with urlopen(f"http://127.0.0.1:{self._metrics_port}/metrics", timeout=LIMIT_S) as answer:
            samples = Exposition(answer.read()).samples
        return {
            sample.labels["source"]: sample.value
            for sample in samples
            if sample.name == "liveness_bridge_bindings_total"
        }

    def start_liveness(self) -> Process:
        return start_liveness(self.folder, self.liveness_port)

    def stop(self) -> None:
        self.bridge.stop()
        self.liveness_process.stop()

    def known_worker(self, process: Process, task_queue: str) -> Worker:
        """Wait until the bridge knows how often the worker sends heartbeats, which its second one tells."""

        def find() -> Worker | None:
            worker = self.liveness.worker_of(process, task_queue)
            # On a busy machine it may be more than the second that the worker means.
            is_told = worker and worker.labels[INTERVAL_LABEL] not in (NO_HEARTBEATS, UNTOLD_INTERVAL)
            return worker if is_told else None

        found: Worker = eventually(find, "no second heartbeat was recorded")
        return found
