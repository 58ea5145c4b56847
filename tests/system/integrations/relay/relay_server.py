"""A server process that relays, and workers that it loses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from liveness.v1 import admin_pb2, service_pb2, worker_pb2
from tests.integration.engine.engine import activity, duration
from tests.system.integrations.relay.nats_servers import NatsServer
from tests.system.server.server_process import ServerProcess

NAMESPACE = "orders"
TIMEOUT_S = 60
CALL_S = 30
ALL_STATES = list(range(1, 6))
FAST = {"LIVENESS_TASK_ATTEMPTS_MAX": "1"}
"""A single failed attempt dead-letters a task."""


def relay_server(
    make_server: Callable[..., ServerProcess], folder: Path, servers: Sequence[NatsServer], *flags: str
) -> ServerProcess:
    relay = ["--relay", ",".join(server.url for server in servers)] if servers else []
    return make_server(f"sqlite:///{folder / 'liveness.db'}", shards=4, flags=[*relay, *flags], environ=FAST)


async def bind(
    server: ServerProcess, worker: str, count: int, task_queue: str = "resize", token: bytes = b""
) -> list[str]:
    """Bind activities to a worker, and return their names."""
    names = [f"{worker}-{number}" for number in range(count)]
    beat = worker_pb2.WorkerHeartbeat(
        worker_instance_key=worker,
        lease_duration=duration(3_600_000),  # longer than any test: the worker is lost only by command
        full_bindings=True,
        bound_activities=[activity(name, task_queue=task_queue, token=token) for name in names],
    )
    request = service_pb2.RecordWorkerHeartbeatRequest(namespace=NAMESPACE, heartbeat=beat)
    await server.liveness.RecordWorkerHeartbeat(request, timeout=CALL_S)
    return names


async def shut_down(server: ServerProcess, worker: str) -> None:
    request = service_pb2.ShutdownWorkerRequest(namespace=NAMESPACE, worker_instance_key=worker)
    await server.liveness.ShutdownWorker(request, timeout=CALL_S)


async def lose(
    server: ServerProcess, worker: str, count: int, task_queue: str = "resize", token: bytes = b""
) -> list[str]:
    """Bind activities to a worker, lose it, and return the names of the rescheduled activities."""
    names = await bind(server, worker, count, task_queue, token)
    await shut_down(server, worker)
    return names


async def tasks(server: ServerProcess) -> list[admin_pb2.Task]:
    request = admin_pb2.ListTasksRequest(states=ALL_STATES, page_size=1_000)  # type: ignore[arg-type]
    found: list[admin_pb2.Task] = []
    while True:
        page = await server.admin.ListTasks(request, timeout=CALL_S)
        found += page.tasks
        request.page_token = page.next_page_token
        if not request.page_token:
            return found


async def states(server: ServerProcess) -> set[str]:
    return {admin_pb2.TaskState.Name(task.state).removeprefix("TASK_STATE_") for task in await tasks(server)}


async def status(server: ServerProcess) -> admin_pb2.GetRelayStatusResponse:
    answer: admin_pb2.GetRelayStatusResponse = await server.admin.GetRelayStatus(
        admin_pb2.GetRelayStatusRequest(), timeout=CALL_S
    )
    return answer


async def until(condition: Callable[[], Awaitable[Any]], what: str) -> None:
    """Wait until a condition holds that is visible only from outside."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while not await condition():
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not within {TIMEOUT_S} s: {what}") from None


async def until_done(server: ServerProcess, count: int) -> None:
    """Wait until all reschedules are marked as done and none was dead-lettered."""

    async def done() -> bool:
        found = await tasks(server)
        assert not [task for task in found if task.state == admin_pb2.TASK_STATE_DEAD_LETTERED]
        return len(found) == count and await states(server) <= {"DONE"}

    try:
        await until(done, f"{count} tasks DONE")
    except AssertionError as error:
        raise AssertionError(f"{error}; {(await status(server)).connections}") from None
