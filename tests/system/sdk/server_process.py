"""Liveness servers in their own processes, and a proxy that records and disturbs the calls to them."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc

from liveness.v1 import activity_pb2, admin_pb2, service_pb2
from liveness.v1.activity_pb2_grpc import ActivityServiceStub
from liveness.v1.admin_pb2_grpc import AdminServiceStub
from liveness.v1.service_pb2_grpc import LivenessServiceStub
from liveness.v1.worker_pb2 import Worker as WorkerMessage
from tests.system.cli.server_processes import environment, first_address, liveness_command

SECONDS_MAX = 60
GAP_S = 0.02

T = TypeVar("T")


def until(condition: Callable[[], T], seconds_max: float = SECONDS_MAX) -> T:
    """Wait, blocking, until `condition` returns a true value, and return it."""
    deadline = time.monotonic() + seconds_max
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(GAP_S)
    return found


class LivenessServer:
    """One database, and one server process after another on it, always at the same address."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self._folder = folder
        self._flags = flags
        self._process: subprocess.Popen[str] | None = None
        self.address = "127.0.0.1:0"
        self._channel: grpc.Channel | None = None

    def start(self) -> None:
        command = liveness_command("serve", "--listen", self.address, "--shards", "2", *self._flags)
        with (self._folder / "server.log").open("a") as log:
            self._process = subprocess.Popen(
                command, cwd=self._folder, env=environment(), stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        self.address = first_address(self._process.stdout)[0]
        self._channel = grpc.insecure_channel(
            self.address,
            options=(("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 500)),
        )
        self.liveness = LivenessServiceStub(self._channel)
        self.admin = AdminServiceStub(self._channel)
        self.activities = ActivityServiceStub(self._channel)

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)
        if number == signal.SIGSTOP:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Stop the process inside the context, with its connections open."""
        self.send(signal.SIGSTOP)
        try:
            yield
        finally:
            self.send(signal.SIGCONT)

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self._process is None:
            return
        if self._channel is not None:
            self._channel.close()
        process, self._process = self._process, None
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(how)
        try:
            process.wait(SECONDS_MAX)
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    # -- the server's state

    def worker(self, namespace: str, key: str) -> WorkerMessage:
        request = service_pb2.DescribeWorkerRequest(namespace=namespace, worker_instance_key=key)
        return self.liveness.DescribeWorker(request, timeout=SECONDS_MAX, wait_for_ready=True).worker

    def bound(self, namespace: str, key: str) -> set[str]:
        return {ref.workflow_id for ref in self.worker(namespace, key).bound_activities}

    def activity(self, namespace: str, id: str, activity_id: str) -> activity_pb2.Activity:
        names = activity_pb2.ActivityId(workflow_id=id, run_id="-", activity_id=activity_id)
        request = activity_pb2.DescribeActivityRequest(namespace=namespace, id=names)
        return self.activities.DescribeActivity(request, timeout=SECONDS_MAX).activity

    def configure(self, namespace: str, **settings: Any) -> None:
        config = admin_pb2.NamespaceConfig(**settings)
        self.admin.UpdateConfig(
            admin_pb2.UpdateConfigRequest(namespace=namespace, set=config), timeout=SECONDS_MAX
        )

    def expire(self, namespace: str, key: str) -> None:
        request = admin_pb2.ExpireWorkerRequest(namespace=namespace, worker_instance_key=key, reason="test")
        self.admin.ExpireWorker(request, timeout=SECONDS_MAX)


@contextmanager
def running_server(folder: Path, *flags: str) -> Iterator[LivenessServer]:
    server = LivenessServer(folder, *flags)
    server.start()
    try:
        yield server
    finally:
        server.end()


def free_address() -> str:
    """Return an address at which no process listens at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


class CallProxy(grpc.GenericRpcHandler):
    """Forwards every call to a server, byte by byte, and can delay and lose messages."""

    def __init__(self, target: str) -> None:
        self._channel = grpc.insecure_channel(target, options=(("grpc.max_reconnect_backoff_ms", 500),))
        self._server = grpc.server(ThreadPoolExecutor(64))
        self._server.add_generic_rpc_handlers((self,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self.calls: Counter[str] = Counter()
        self.requests: list[tuple[str, bytes]] = []
        self.time_allowed_s: dict[str, float] = {}
        """The time until the deadline of the last call of each method."""
        self.rewrite: dict[str, Callable[[bytes], bytes]] = {}
        """Changes the requests of these methods."""
        self._to_lose: Counter[str] = Counter()
        self._open: dict[str, threading.Event] = {}
        self._answers_open: dict[str, tuple[threading.Event, threading.Event]] = {}
        self.is_muted = threading.Event()
        """While set, streams return nothing."""
        self.held_back: Callable[[bytes], bool] = lambda response: False
        """Selects the messages of streams that are not returned."""
        self.unknown: set[str] = set()
        """Methods that are unimplemented."""
        self._server.start()

    def lose_answers(self, method: str, number: int) -> None:
        """Lose the next `number` answers of this method; the server has served the calls."""
        self._to_lose[method] = number

    @contextmanager
    def holding_back(self, method: str) -> Iterator[None]:
        """Hold the requests of this method until the context ends."""
        gate = self._open[method] = threading.Event()
        try:
            yield
        finally:
            del self._open[method]
            gate.set()

    @contextmanager
    def holding_answers(self, method: str) -> Iterator[threading.Event]:
        """Hold the answers of this method until the context ends. The event is set when there is one."""
        gate, held = threading.Event(), threading.Event()
        self._answers_open[method] = gate, held
        try:
            yield held
        finally:
            del self._answers_open[method]
            gate.set()

    def close(self) -> None:
        self._server.stop(0).wait()
        self._channel.close()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        path = details.method
        name = path.rsplit("/", 1)[1]
        if name in self.unknown:
            return None
        if name in ("Attach", "WatchEvents"):
            return grpc.stream_stream_rpc_method_handler(
                lambda requests, context: self._stream(path, requests, context)
            )
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: self._call(path, name, request, context)
        )

    def _call(self, path: str, name: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.calls[name] += 1
        self.requests.append((name, request))
        self.time_allowed_s[name] = context.time_remaining() or float("inf")
        if name in self.rewrite:
            request = self.rewrite[name](request)
        if (gate := self._open.get(name)) is not None:
            gate.wait(SECONDS_MAX)
        try:
            pass_on: Any = self._channel.unary_unary(path)
            answer: bytes = pass_on(request, timeout=context.time_remaining())
        except grpc.RpcError as error:
            _fail_alike(error, context)
            raise
        if (answers := self._answers_open.get(name)) is not None:
            gate, held = answers
            held.set()
            gate.wait(SECONDS_MAX)
        if self._to_lose[name] > 0:
            self._to_lose[name] -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "the answer got lost")
        return answer

    def _stream(self, path: str, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        name = path.rsplit("/", 1)[1]
        self.calls[name] += 1
        pass_on: Any = self._channel.stream_stream(path)
        call = pass_on(self._recorded(name, requests))
        context.add_callback(call.cancel)
        try:
            for response in call:
                if not (self.is_muted.is_set() or self.held_back(response)):
                    yield response
        except grpc.RpcError as error:
            _fail_alike(error, context)

    def _recorded(self, name: str, requests: Iterator[bytes]) -> Iterator[bytes]:
        for request in requests:
            self.requests.append((name, request))
            yield request


def _fail_alike(error: grpc.RpcError, context: grpc.ServicerContext) -> None:
    call: Any = error
    context.set_trailing_metadata(call.trailing_metadata() or ())
    context.abort(call.code(), call.details() or "")


@contextmanager
def call_proxy(target: str) -> Iterator[CallProxy]:
    proxy = CallProxy(target)
    try:
        yield proxy
    finally:
        proxy.close()


class Lines:
    """The output of a child process, line by line, with a time-out."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = ThreadPoolExecutor(1)
        self._reader.submit(self._read, process)

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.put(line.strip())
        self._lines.put("(it has ended)")

    def next(self) -> str:
        return self._lines.get(timeout=SECONDS_MAX)

    def close(self) -> None:
        self._reader.shutdown()
