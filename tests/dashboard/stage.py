"""A real server as a process, calls to it over HTTP, and workers that do nothing but live."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote

READY_WITHIN_S = 30
BATCH = 1_000


class ServerProcess:
    """`liveness serve` on an SQLite file. Comes back at the same addresses when it is started again."""

    def __init__(self, folder: Path, *options: str, shards: int = 16) -> None:
        self._folder = folder
        self._options = options
        self._shards = shards
        self._places = ("127.0.0.1:0", "127.0.0.1:0")
        self._log = folder / "server.log"
        self.address = ""
        self.url = ""

    def start(self) -> ServerProcess:
        grpc, http = self._places
        command = [
            sys.executable, "-P", "-m", "liveness.cli", "serve",
            "--db", f"sqlite:///{self._folder / 'liveness.db'}", "--listen", grpc, "--http", http,
            "--shards", str(self._shards), "--log-format", "json", *self._options,
        ]  # fmt: skip
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LIVENESS_")}
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        self.url = ""
        told = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(told,), daemon=True)
        self._reader.start()
        told.wait(READY_WITHIN_S)
        if not self.url:
            self.kill()
            raise RuntimeError(f"the server did not start:\n{self._log.read_text()}")
        self._places = (self.address, re.sub(r"^http://|/$", "", self.url))
        return self

    def _read(self, told: threading.Event) -> None:
        """Whether it is ready, or will never be."""
        assert self._process.stdout is not None
        with self._log.open("a") as log:
            for line in self._process.stdout:
                log.write(line)
                log.flush()
                if '"event": "serving"' in line:
                    serving = json.loads(line)
                    self.address, self.url = serving["address"], serving["http"]
                    told.set()
        told.set()

    def stop(self) -> None:
        """In good order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(how)
        self._process.wait(timeout=30)
        self._reader.join(timeout=30)


class Refused(Exception):
    def __init__(self, code: int, body: Any) -> None:
        super().__init__(f"{code}: {body}")
        self.code = code


class Api:
    """The server's calls over HTTP, one connection."""

    def __init__(self, url: str, namespace: str = "default") -> None:
        self._place = re.sub(r"^http://|/$", "", url)
        self.namespace = namespace
        self._connection = HTTPConnection(self._place, timeout=60)

    def close(self) -> None:
        self._connection.close()

    def get(self, path: str) -> Any:
        return self._call("GET", path, None)

    def post(self, path: str, body: Any) -> Any:
        return self._call("POST", f"/v1/namespaces/{self.namespace}/{path}", body)

    def _call(self, verb: str, path: str, body: Any) -> Any:
        headers = {} if body is None else {"Content-Type": "application/json"}
        self._connection.request(verb, path, None if body is None else json.dumps(body), headers)
        response = self._connection.getresponse()
        answer = json.loads(response.read())
        if response.status != 200:
            raise Refused(response.status, answer)
        return answer

    # -- what tests say often

    def beat(self, key: str, **fields: Any) -> Any:
        return self.post("worker/heartbeat", {"heartbeat": {"worker_instance_key": key, **fields}})

    def beats(self, heartbeats: list[dict[str, Any]]) -> None:
        for start in range(0, len(heartbeats), BATCH):
            answer = self.post("heartbeats", {"heartbeats": heartbeats[start : start + BATCH]})
            refused = [item for item in answer["items"] if "status" in item]
            assert not refused, refused[0]

    def schedule(self, workflow: str, **fields: Any) -> Any:
        id = {"workflow_id": workflow, "run_id": "r1", "activity_id": "a1"}
        return self.post("activities", {"id": id, "activity_type": "resize", "task_queue": "photos", **fields})

    def poll(self, key: str, number: int = 1) -> list[Any]:
        answer = self.post(
            "activities/poll",
            {"worker_instance_key": key, "task_queue": "photos", "max_activities": number, "wait": "2s"},
        )
        found: list[Any] = answer["activities"]
        return found

    def worker(self, key: str) -> Any:
        return self.get(f"/v1/namespaces/{self.namespace}/worker?worker_instance_key={quote(key, safe='')}")[
            "worker"
        ]


class Troupe:
    """Workers that send their heartbeats, all in one call, from a thread."""

    def __init__(self, url: str, heartbeats: list[dict[str, Any]], every_s: float, namespace: str = "default") -> None:
        self._url = url
        self._namespace = namespace
        self._every_s = every_s
        self._lock = threading.Lock()
        self._alive = {beat["worker_instance_key"]: {"sequence": 0, **beat} for beat in heartbeats}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> Troupe:
        self.beat_once()
        self._thread.start()
        return self

    def fall_silent(self, *keys: str) -> None:
        with self._lock:
            for key in keys:
                self._alive.pop(key)

    def join(self, *heartbeats: dict[str, Any]) -> None:
        with self._lock:
            for beat in heartbeats:
                self._alive[beat["worker_instance_key"]] = {"sequence": 0, **beat}

    def take_up(self, key: str, tasks: list[Any]) -> None:
        """Confirm with the next heartbeats what a poll handed out."""
        with self._lock:
            self._alive[key]["bound_activities"] = [{**task["id"], "attempt": task["attempt"]} for task in tasks]

    def beat_once(self) -> None:
        with self._lock:
            for beat in self._alive.values():
                beat["sequence"] += 1
            beats = list(self._alive.values())
        api = Api(self._url, self._namespace)
        try:
            api.beats(beats)
        finally:
            api.close()

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            try:
                self.beat_once()
            except OSError:
                continue  # the server is away

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(timeout=60)
