"""The clients that are no workers: an operator who sets the configuration, and an engine that schedules activities."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

import grpc

from liveness.sdk.values import ms_to_duration
from liveness.v1 import activity_pb2, admin_pb2
from liveness.v1.activity_pb2_grpc import ActivityServiceStub
from liveness.v1.admin_pb2_grpc import AdminServiceStub

if TYPE_CHECKING:
    from tests.simulation.world import World

SCHEDULE_EVERY_S = 0.5


def _timeouts(random: Random) -> activity_pb2.ActivityTimeouts:
    """Limits for three of four activities; a worker's attempt that is not stuck takes less than 4 s."""
    kind = random.randrange(4)
    return activity_pb2.ActivityTimeouts(
        start_to_close_timeout=ms_to_duration(5_000) if kind in (0, 2) else None,
        heartbeat_timeout=ms_to_duration(1_500) if kind in (1, 2) else None,
        schedule_to_start_timeout=ms_to_duration(random.choice((1_000, 20_000))) if kind == 2 else None,
        schedule_to_close_timeout=ms_to_duration(30_000) if kind == 1 else None,
    )


class Client:
    def __init__(self, world: World) -> None:
        self._world = world
        self._process = world.process("client", "client")
        self.scheduled: list[tuple[str, str]] = []
        """Namespace and workflow of each acknowledged activity."""
        self.stopped = False

    def _stub(self, kind: Any) -> Any:
        world = self._world
        address = world.random.choice(world.addresses())
        return kind(self._process.context.run(world.network.connect, address))

    async def configure(self) -> None:
        """Set the configuration that all namespaces inherit, as soon as a node serves."""
        plan = self._world.plan
        rules = admin_pb2.NamespaceConfig(
            cleanup_delay=ms_to_duration(plan.cleanup_delay_ms),
            max_workers=plan.quota,
            max_worker_deaths=plan.deaths_max,
            dispatch_timeout=ms_to_duration(3_000),
            storm_min_workers=plan.storm_settings.min_workers,
            storm_hold=ms_to_duration(plan.storm_settings.hold_ms),
            storm_pace=plan.storm_settings.pace,
        )
        for _ in range(200):
            try:
                await self._stub(AdminServiceStub).UpdateConfig(
                    admin_pb2.UpdateConfigRequest(set=rules), timeout=2
                )
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.2)
            else:
                if plan.nodes_max > 1:
                    await asyncio.sleep(3)  # other nodes read the change within their polling interval
                self._world.audit.quota = {f"ns{number}": plan.quota for number in range(plan.namespaces)}
                return
        raise AssertionError("no node serves")

    def release_storm(self, namespace: str) -> None:
        self._process.spawn(self._release_storm(namespace))

    async def _release_storm(self, namespace: str) -> None:
        request = admin_pb2.ReleaseStormRequest(namespace=namespace, reason="the operator says so")
        try:
            await self._stub(AdminServiceStub).ReleaseStorm(request, timeout=2)
        except grpc.aio.AioRpcError:
            pass

    def forget(self, namespace: str, key: str) -> None:
        self._process.spawn(self._forget(namespace, key))

    async def _forget(self, namespace: str, key: str) -> None:
        request = admin_pb2.ForgetWorkerRequest(namespace=namespace, worker_instance_key=key)
        try:
            await self._stub(AdminServiceStub).ForgetWorker(request, timeout=2)
        except grpc.aio.AioRpcError:
            pass  # it is ACTIVE, or not known

    def start(self) -> None:
        self._process.spawn(self._schedule())

    async def _schedule(self) -> None:
        world = self._world
        number = 0
        while not self.stopped:
            await asyncio.sleep(world.random.uniform(0, 2 * SCHEDULE_EVERY_S))
            number += 1
            namespace = f"ns{number % world.plan.namespaces}"
            request = activity_pb2.ScheduleActivityRequest(
                namespace=namespace,
                id=activity_pb2.ActivityId(workflow_id=f"order-{number}", run_id="-", activity_id="-"),
                task_queue=world.random.choice(("q0", "q1")),
            )
            if world.plan.has_time_limits:
                request.timeouts.CopyFrom(_timeouts(Random(f"limits {number}")))
            for _ in range(5):
                try:
                    await self._stub(ActivityServiceStub).ScheduleActivity(request, timeout=2)
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(0.3)
                else:
                    self.scheduled.append((namespace, f"order-{number}"))
                    break
