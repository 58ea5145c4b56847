"""Run a worker inside a Starlette or FastAPI application: it starts and ends with it.

from fastapi import FastAPI, Request
from liveness import Worker
from liveness.contrib.starlette import worker_lifespan

def make_worker() -> Worker:
    worker = Worker(task_queue="thumbnails")

    @worker.activity("thumbnail")
    async def thumbnail(task, photo: str) -> str: ...

    return worker

app = FastAPI(lifespan=worker_lifespan(make_worker))

@app.get("/worker")
async def worker(request: Request):
    return {"key": request.state.liveness_worker.instance_key}
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

from liveness.sdk import Client, Worker, WorkerEnded

log = logging.getLogger("liveness.contrib.starlette")

State: TypeAlias = Mapping[str, Any]
Lifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[State]]

WORKER = "liveness_worker"
CLIENT = "liveness_client"


def worker_lifespan(
    make_worker: Callable[[], Worker], inner: Callable[[Any], AbstractAsyncContextManager[Any]] | None = None
) -> Lifespan:
    """A lifespan in which a worker runs. `request.state.liveness_worker` is the worker. `make_worker` is called at each start of the
    application, because a worker is for one start only. `inner`: the application's own lifespan, which begins after the worker.

    The application does not start if the worker cannot. A worker that ends later, for example because an operator drains it, does not
    end the application. When the application ends, running handlers may continue for the worker's `stop_timeout`."""

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[State]:
        async with make_worker() as worker:
            run = asyncio.create_task(_run(worker))
            try:
                async with _entered(inner, app) as state:
                    yield {**state, WORKER: worker}
            finally:
                worker.stop("its web application ends")
                await run

    return lifespan


def client_lifespan(
    make_client: Callable[[], Client] = Client,
    inner: Callable[[Any], AbstractAsyncContextManager[Any]] | None = None,
) -> Lifespan:
    """A lifespan with a client, as `request.state.liveness_client`, to schedule activities from requests."""

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[State]:
        async with make_client() as client, _entered(inner, app) as state:
            yield {**state, CLIENT: client}

    return lifespan


async def _run(worker: Worker) -> None:
    try:
        await worker.run(handle_signals=False)  # the web server has its own handlers
    except WorkerEnded as error:
        log.error("the worker of this application has ended: %s", error)


@asynccontextmanager
async def _entered(
    inner: Callable[[Any], AbstractAsyncContextManager[Any]] | None, app: Any
) -> AsyncIterator[State]:
    if inner is None:
        yield {}
        return
    async with inner(app) as state:
        yield state or {}
