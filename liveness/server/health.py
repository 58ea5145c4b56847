"""The standard gRPC health service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

Status = health_pb2.HealthCheckResponse

READINESS = "liveness.readiness"
"""The service name under which this node reports whether it serves all shards assigned to it."""


class Health(health_pb2_grpc.HealthServicer):
    """Ends its watch calls when the server stops. The servicer of grpc_health keeps them open, so one watching load
    balancer would delay every stop until the time-out for calls in flight."""

    def __init__(
        self, services: Iterable[str], conditions: Mapping[str, Callable[[], bool]] | None = None
    ) -> None:
        """`conditions`: extra service names, each with a condition that must hold besides the server running."""
        self._conditions = dict(conditions or {})
        self._services = frozenset(("", *services, *self._conditions))
        self._status: int = Status.NOT_SERVING
        self._is_shutting_down = False
        self._changed = asyncio.Event()

    @property
    def is_serving(self) -> bool:
        return self._status == Status.SERVING

    def serve(self) -> None:
        if not self._is_shutting_down:
            self._change(Status.SERVING)

    def stop_serving(self) -> None:
        self._change(Status.NOT_SERVING)

    async def enter_graceful_shutdown(self) -> None:
        self._is_shutting_down = True
        self._change(Status.NOT_SERVING)

    def recheck(self) -> None:
        """Tell watchers: a condition may have changed."""
        self._change(self._status)

    def _status_of(self, service: str) -> int:
        condition = self._conditions.get(service)
        return self._status if condition is None or condition() else Status.NOT_SERVING

    def _change(self, status: int) -> None:
        self._status = status
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> health_pb2.HealthCheckResponse:
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND)
        return Status(status=self._status_of(request.service))

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        known = request.service in self._services
        while True:
            # Read before the answer is sent, so that a change meanwhile is not missed.
            changed, is_shutting_down = self._changed, self._is_shutting_down
            yield Status(status=self._status_of(request.service) if known else Status.SERVICE_UNKNOWN)
            if is_shutting_down:
                return
            await changed.wait()
