"""A component as tests play it: calls of RegistryService over real gRPC."""

from __future__ import annotations

from typing import Any

from liveness.v1 import registry_pb2
from liveness.v1 import registry_service_pb2 as pb
from liveness.v1.registry_service_pb2_grpc import RegistryServiceStub
from tests.integration.engine.engine import duration
from tests.integration.server.server_harness import NAMESPACE

REFUSE = registry_pb2.REPLICA_POLICY_REFUSE
NUMBER = registry_pb2.REPLICA_POLICY_NUMBER


class RegistryClient:
    def __init__(self, channel: Any, namespace: str = NAMESPACE, metadata: Any = None) -> None:
        # Untyped, because tests send invalid values.
        self.registry: Any = RegistryServiceStub(channel)
        self._namespace = namespace
        self._metadata = metadata

    async def register(
        self, key: str = "broker:nats", *, interval_ms: int = 0, lease_ms: int = 0, **fields: Any
    ) -> pb.RegisterResponse:
        request = pb.RegisterRequest(namespace=self._namespace, worker_instance_key=key, **fields)
        if interval_ms:
            request.expected_interval.CopyFrom(duration(interval_ms))
        if lease_ms:
            request.lease_duration.CopyFrom(duration(lease_ms))
        response: pb.RegisterResponse = await self.registry.Register(request, metadata=self._metadata)
        return response

    async def heartbeat(self, key: str = "broker:nats", **fields: Any) -> pb.HeartbeatResponse:
        request = pb.HeartbeatRequest(namespace=self._namespace, worker_instance_key=key, **fields)
        response: pb.HeartbeatResponse = await self.registry.Heartbeat(request, metadata=self._metadata)
        return response

    async def deregister(self, key: str = "broker:nats", **fields: Any) -> pb.DeregisterResponse:
        request = pb.DeregisterRequest(namespace=self._namespace, worker_instance_key=key, **fields)
        response: pb.DeregisterResponse = await self.registry.Deregister(request, metadata=self._metadata)
        return response

    async def entry(self, key: str = "broker:nats") -> registry_pb2.RegistryEntry:
        request = pb.GetEntryRequest(namespace=self._namespace, worker_instance_key=key)
        response: pb.GetEntryResponse = await self.registry.GetEntry(request, metadata=self._metadata)
        return response.entry

    async def page(self, **fields: Any) -> pb.ListEntriesResponse:
        request = pb.ListEntriesRequest(namespace=self._namespace, **fields)
        response: pb.ListEntriesResponse = await self.registry.ListEntries(request, metadata=self._metadata)
        return response

    async def names(self, **fields: Any) -> list[str]:
        return [entry.worker_instance_key for entry in (await self.page(**fields)).entries]
