"""A server reports numbers about itself as metrics of one of its components, for those who look for them there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import structlog

from liveness.background import BackgroundTasks
from liveness.clock import Clock
from liveness.domain.errors import LivenessError
from liveness.routing.own_calls import OwnCalls
from liveness.security.grants import Grant, Role
from liveness.security.principal import Caller, Principal, current_caller
from liveness.store.errors import StoreError
from liveness.v1 import component_metrics_service_pb2 as pb

logger = structlog.get_logger("liveness.registry")

FIRST_AFTER_MS = 1_000
REPORT = pb.DESCRIPTOR.services_by_name["ComponentMetricsService"].methods_by_name["ReportMetrics"]


class OwnMetrics:
    def __init__(
        self,
        clock: Clock,
        calls: OwnCalls,
        namespace: str,
        component: str,
        interval_ms: int,
        read: Callable[[], Iterable[pb.MetricSample]],
        *,
        serve: Callable[[Any], Awaitable[Any]],
        admit: Callable[[str], None] = lambda namespace: None,
    ) -> None:
        """`component`: its worker key. `read`: the present numbers. `serve`: serves the report if this node owns its shard. `admit`:
        refuses a namespace that this node does not serve."""
        self._clock = clock
        self._calls = calls
        self._namespace = namespace
        self._component = component
        self._interval_ms = interval_ms
        self._read = read
        self._serve = serve
        self._admit = admit
        self._tasks = BackgroundTasks("own metrics")

    def start(self) -> None:
        self._tasks.start(self._run())

    async def stop(self) -> None:
        await self._tasks.close()

    async def _run(self) -> None:
        current_caller.set(Caller(Principal("server:liveness", {Grant(Role.WORKER, self._namespace): None})))
        wait_ms = min(FIRST_AFTER_MS, self._interval_ms)
        while True:
            await self._clock.sleep(wait_ms)
            wait_ms = self._interval_ms
            report = pb.ReportMetricsRequest(
                namespace=self._namespace, worker_instance_key=self._component, samples=self._read()
            )
            try:
                self._admit(self._namespace)
                await self._calls.call(REPORT, report, self._serve)
            except (LivenessError, StoreError) as error:
                logger.debug("own metrics are not stored", component=self._component, why=str(error))
