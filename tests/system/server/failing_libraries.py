"""A server whose process has all kinds of unexpected errors, each of which ends up on stderr in its own way.

`python -m tests.system.server.failing_libraries FILE`: FILE is the SQLite database.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import warnings
from typing import Any

import grpc
from apscheduler.events import EVENT_JOB_ERROR
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from liveness.cli.server_process import serve
from liveness.config.settings import Settings


def fail(what: str) -> None:
    password = "hunter2"  # local variables must not be logged
    raise RuntimeError(f"{what} failed, {len(password)}\nin two lines")


class FailsWhenDeleted:
    def __del__(self) -> None:
        fail("a finalizer")


class FailingHandler(grpc.GenericRpcHandler):
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        async def handle(request: bytes, context: object) -> bytes:
            fail("a handler")
            return b""

        return grpc.unary_unary_rpc_method_handler(handle)


async def fail_in_a_task() -> None:
    fail("a task")


async def provoke() -> None:
    task = asyncio.ensure_future(fail_in_a_task())
    await asyncio.wait([task])
    del task
    gc.collect()
    asyncio.get_running_loop().call_soon(fail, "a callback")
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((FailingHandler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            call: Any = channel.unary_unary("/a/b")
            await call(b"")
        except grpc.aio.AioRpcError:
            pass
    await server.stop(None)
    scheduler, failed = AsyncIOScheduler(), asyncio.Event()
    scheduler.add_listener(lambda _: failed.set(), EVENT_JOB_ERROR)
    scheduler.add_job(fail, args=("a job",))
    scheduler.start()
    await failed.wait()
    await asyncio.sleep(0)  # the scheduler logs after it has told its listeners
    scheduler.shutdown()
    thread = threading.Thread(target=fail, args=("a thread",))
    thread.start()
    thread.join()
    FailsWhenDeleted()
    warnings.warn("a warning", stacklevel=1)
    os.kill(os.getpid(), signal.SIGTERM)


async def main() -> None:
    settings = Settings(
        db=f"sqlite:///{sys.argv[1]}", listen="127.0.0.1:0", http="off", shards=1, log_format="json"
    )
    tasks = []
    await serve(settings, on_ready=lambda *_: tasks.append(asyncio.ensure_future(provoke())))
    fail("the process")


if __name__ == "__main__":
    asyncio.run(main())
