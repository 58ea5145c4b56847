"""A watcher of a namespace's events that records when each worker's expiry becomes visible."""

from __future__ import annotations

import asyncio
import json
import time

import grpc
from google.protobuf.duration_pb2 import Duration

from bench.messages import NAMESPACE
from liveness.v1.admin_pb2 import NamespaceConfig, UpdateConfigRequest
from liveness.v1.admin_pb2_grpc import AdminServiceStub
from liveness.v1.service_pb2 import WatchEventsRequest
from liveness.v1.service_pb2_grpc import LivenessServiceStub

SECONDS_MAX = 180


def disable_storm_hold(address):
    """Disable storms: many leases that end together would be held on purpose."""
    with grpc.insecure_channel(address) as channel:
        AdminServiceStub(channel).UpdateConfig(
            UpdateConfigRequest(namespace=NAMESPACE, set=NamespaceConfig(storm_hold=Duration()))
        )


class EventWatch:
    """Watches from its start on."""

    def __init__(self, channel):
        self._stream = LivenessServiceStub(channel).WatchEvents(WatchEventsRequest(namespace=NAMESPACE))
        self.seen: dict[str, float] = {}
        """Worker -> wall time at which its expiry was seen."""
        self.late_ms: list[int] = []
        """How much later than its lease each worker expired, on its shard's clock."""
        self.activities = 0
        """The number of activities that they held, according to their death certificates."""

    async def begin(self):
        await self._stream.read()

    async def until(self, count):
        """Return the wall time at which the expiry of this many workers has been seen."""
        now = time.time()
        async with asyncio.timeout(SECONDS_MAX):
            while len(self.seen) < count:
                answer = await self._stream.read()
                now = time.time()
                for event in answer.events:
                    if event.type == "WorkerDeactivated":
                        self._note(event, now)
        self._stream.cancel()
        return now

    def _note(self, event, now):
        self.seen[event.worker_instance_key] = now
        certificate = json.loads(event.data_json)["certificate"]
        self.activities += certificate["activities"]
        self.late_ms.append(certificate["silence_ms"] - certificate["granted_ms"])
