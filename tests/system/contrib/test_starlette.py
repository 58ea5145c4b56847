"""A worker lives inside a FastAPI application, under a real web server."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import uvicorn
from fastapi import FastAPI, Request

from liveness.contrib.starlette import client_lifespan, worker_lifespan
from liveness.sdk import Client, InactiveReason, ServerAway, Task, Worker, WorkerState
from tests.system.sdk.server_process import SECONDS_MAX, LivenessServer, free_address, running_server, until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivenessServer]:
    with running_server(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def namespace(tmp_path: Path) -> str:
    return tmp_path.name


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """Serve the application with uvicorn in a thread, and yield its URL."""
    host, _, port = free_address().rpartition(":")
    web = uvicorn.Server(uvicorn.Config(app, host=host, port=int(port), log_level="error"))
    thread = threading.Thread(target=lambda: asyncio.run(web.serve()))
    thread.start()
    try:
        until(lambda: web.started or not thread.is_alive())
        assert web.started
        yield f"http://{host}:{port}"
    finally:
        web.should_exit = True
        thread.join(SECONDS_MAX)


def get(url: str) -> Any:
    with urlopen(url, timeout=SECONDS_MAX) as answer:
        return json.load(answer)


def test_a_worker_starts_runs_and_ends_with_its_application(server: LivenessServer, namespace: str) -> None:
    def make_worker() -> Worker:
        worker = Worker(server.address, namespace=namespace, task_queue="q", instance_key="web")

        @worker.activity("double")
        async def double(task: Task, number: int) -> int:
            return 2 * number

        return worker

    @asynccontextmanager
    async def inner(app: FastAPI) -> AsyncIterator[dict[str, str]]:
        yield {"greeting": "hello"}

    app = FastAPI(lifespan=worker_lifespan(make_worker, inner))

    @app.get("/worker")
    async def worker(request: Request) -> dict[str, str]:
        return {"key": request.state.liveness_worker.instance_key, "greeting": request.state.greeting}

    with Client(server.address, namespace=namespace).blocking as client:
        for _ in range(2):  # the application may start again in the same process
            with served(app) as url:
                assert get(f"{url}/worker") == {"key": "web", "greeting": "hello"}
                job = client.schedule("double", id="a", input=21, task_queue="q")
                assert job.result(int, timeout=SECONDS_MAX) == 42
                assert client.worker("web").state is WorkerState.ACTIVE
            ended = client.worker("web")
            assert (ended.inactive_reason, ended.inactive_detail) == (
                InactiveReason.SHUTDOWN,
                "its web application ends",
            )


async def test_an_application_whose_worker_cannot_start_does_not_start() -> None:
    app = FastAPI(lifespan=worker_lifespan(lambda: Worker(free_address(), start_timeout=0.2)))
    with pytest.raises(ServerAway):
        await app.router.lifespan_context(app).__aenter__()


def test_requests_schedule_activities(server: LivenessServer, namespace: str) -> None:
    app = FastAPI(lifespan=client_lifespan(lambda: Client(server.address, namespace=namespace)))

    @app.get("/jobs/{name}")
    async def schedule(request: Request, name: str) -> dict[str, bool]:
        job = await request.state.liveness_client.schedule("t", id=name, task_queue="q")
        return {"created": job.created}

    with served(app) as url:
        assert get(f"{url}/jobs/one") == {"created": True}
        assert get(f"{url}/jobs/one") == {"created": False}
