"""A real server process, its HTTP calls, and workers that only send heartbeats."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import closing
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
from google.protobuf.json_format import ParseDict

from liveness.v1.service_pb2 import RecordWorkerHeartbeatsRequest
from liveness.v1.service_pb2_grpc import LivenessServiceStub
from liveness.v1.worker_pb2 import ActivityRef, WorkerHeartbeat

READY_WITHIN_S = 30
BATCH = 1_000


class ServerProcess:
    """`liveness serve` on an SQLite file; it returns at the same addresses when it is started again."""

    def __init__(self, folder: Path, *options: str, **settings: str) -> None:
        """`settings`: settings without a flag, by their names in the environment without LIVENESS_."""
        self._folder = folder
        self._options = options
        self._settings = {f"LIVENESS_{name}": value for name, value in settings.items()}
        self._addresses = ("127.0.0.1:0", "127.0.0.1:0")
        self._log = folder / "server.log"
        self.address = ""
        self.url = ""

    def start(self) -> ServerProcess:
        grpc, http = self._addresses
        command = [
            sys.executable, "-P", "-m", "liveness.cli", "serve",
            "--db", f"sqlite:///{self._folder / 'liveness.db'}", "--listen", grpc, "--http", http,
            "--shards", "16", "--log-format", "json", *self._options,
        ]  # fmt: skip
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LIVENESS_")}
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # Tests count workers and events, so the server does not register itself.
            env=environment | {"LIVENESS_REGISTER_SELF": "off"} | self._settings,
        )
        self.url = ""
        told = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(told,), daemon=True)
        self._reader.start()
        told.wait(READY_WITHIN_S)
        if not self.url:
            self.kill()
            raise RuntimeError(f"the server did not start:\n{self._log.read_text()}")
        self._addresses = (self.address, re.sub(r"^http://|/$", "", self.url))
        return self

    def _read(self, told: threading.Event) -> None:
        """Return whether the server is ready; fail if it has ended."""
        assert self._process.stdout is not None
        with self._process.stdout, self._log.open("a") as log:
            for line in self._process.stdout:
                log.write(line)
                log.flush()
                if '"event": "serving"' in line:
                    serving = json.loads(line)
                    self.address, self.url = serving["address"], serving["http"]
                    told.set()
        told.set()

    def stop(self) -> None:
        """Stop it gracefully."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def delete_database(self) -> None:
        """Delete the database, so that the next start is empty."""
        for path in self._folder.glob("liveness.db*"):
            path.unlink()

    def _end(self, how: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(how)
        self._process.wait(timeout=30)
        self._reader.join(timeout=30)


class WebhookReceiver:
    """Another engine, which accepts or rejects reschedules."""

    def __init__(self) -> None:
        receiver = self
        self.accepts = False

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200 if receiver.accepts else 503)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=30)


class Refused(Exception):
    def __init__(self, code: int, body: Any) -> None:
        super().__init__(f"{code}: {body}")
        self.code = code


class ApiClient:
    """The server's calls over HTTP."""

    def __init__(self, url: str, namespace: str = "default") -> None:
        self._base_path = re.sub(r"^http://|/$", "", url)
        self.namespace = namespace

    def get(self, path: str) -> Any:
        return self._call("GET", path, None)

    def post(self, path: str, body: Any) -> Any:
        return self._call("POST", f"/v1/namespaces/{self.namespace}/{path}", body)

    def _call(self, verb: str, path: str, body: Any) -> Any:
        headers = {} if body is None else {"Content-Type": "application/json"}
        with closing(HTTPConnection(self._base_path, timeout=60)) as connection:
            connection.request(verb, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
        if response.status != 200:
            raise Refused(response.status, answer)
        return answer

    # -- frequent calls

    def beat(self, key: str, **fields: Any) -> Any:
        return self.post("worker/heartbeat", {"heartbeat": {"worker_instance_key": key, **fields}})

    def beats(self, heartbeats: list[dict[str, Any]]) -> None:
        answer = self.post("heartbeats", {"heartbeats": heartbeats})
        refused = [item for item in answer["items"] if "status" in item]
        assert not refused, refused[0]

    def configure(self, **settings: str) -> None:
        self._call("PATCH", f"/v1/namespaces/{self.namespace}/config", {"set": settings})

    def schedule(self, workflow: str, **fields: Any) -> Any:
        return self.post(
            "activities",
            {"id": activity(workflow), "activity_type": "resize", "task_queue": "photos", **fields},
        )

    def poll(self, key: str, number: int = 1, wait_s: float = 5.0) -> list[Any]:
        request = {
            "worker_instance_key": key, "task_queue": "photos", "max_activities": number, "wait": f"{wait_s}s",
        }  # fmt: skip
        found: list[Any] = self.post("activities/poll", request)["activities"]
        return found

    def die_holding_work(self, key: str, **fields: Any) -> None:
        """Let a worker take and confirm the available activities, and never send a heartbeat again."""
        self.beat(key, session_id="s", sequence=1, lease_duration="1s", task_queue="photos", **fields)
        bound = [{**task["id"], "attempt": task["attempt"]} for task in self.poll(key)]
        self.beat(key, session_id="s", sequence=2, lease_duration="1s", bound_activities=bound)

    def expire(self, key: str) -> None:
        self.post("worker/expire", {"worker_instance_key": key})

    def worker(self, key: str) -> Any:
        return self.get(f"/v1/namespaces/{self.namespace}/worker?worker_instance_key={quote(key, safe='')}")[
            "worker"
        ]


def activity(workflow: str) -> dict[str, str]:
    return {"workflow_id": workflow, "run_id": "r1", "activity_id": "a1"}


class WorkerFleet:
    """Workers that send their heartbeats from a thread, a thousand in a call."""

    def __init__(
        self, address: str, heartbeats: list[dict[str, Any]], every_s: float, namespace: str = "default"
    ) -> None:
        self._address = address
        self._namespace = namespace
        self._every_s = every_s
        self._lock = threading.Lock()
        self._alive: dict[str, WorkerHeartbeat] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.join(*heartbeats)

    def start(self) -> WorkerFleet:
        self.beat_once()
        self._thread.start()
        return self

    @property
    def keys(self) -> list[str]:
        return list(self._alive)

    def fall_silent(self, key: str) -> WorkerHeartbeat:
        with self._lock:
            return self._alive.pop(key)

    def join(self, *heartbeats: dict[str, Any]) -> None:
        for fields in heartbeats:
            self.rejoin(ParseDict(fields, WorkerHeartbeat()))

    def rejoin(self, heartbeat: WorkerHeartbeat) -> None:
        with self._lock:
            self._alive[heartbeat.worker_instance_key] = heartbeat

    def confirm_tasks(self, key: str, tasks: list[Any]) -> None:
        """Confirm the polled tasks with the next heartbeats."""
        with self._lock:
            bound = self._alive[key].bound_activities
            bound.extend(ActivityRef(**task["id"], attempt=task["attempt"]) for task in tasks)

    def beat_once(self) -> None:
        with self._lock:
            for beat in self._alive.values():
                beat.sequence += 1
            beats = list(self._alive.values())
            requests = [
                RecordWorkerHeartbeatsRequest(
                    namespace=self._namespace, heartbeats=beats[start : start + BATCH]
                )
                for start in range(0, len(beats), BATCH)
            ]
        with grpc.insecure_channel(self._address) as channel:
            stub = LivenessServiceStub(channel)
            for request in requests:
                for item in stub.RecordWorkerHeartbeats(request, timeout=60).items:
                    assert item.HasField("result"), item

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            try:
                self.beat_once()
            except grpc.RpcError:
                continue  # the server is down

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(timeout=60)
