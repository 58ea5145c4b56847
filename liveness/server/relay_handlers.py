"""Status and replay of the NATS relay, for the shards of this server. Answers of several servers add up."""

from __future__ import annotations

from typing import Protocol

from liveness.clock import Clock
from liveness.domain.errors import InvalidField, RelayNotConfigured
from liveness.domain.relay_status import RelayStatus, ReplayResult, ReplaySelection
from liveness.server import wire
from liveness.server.validation import duration_ms, optional_identifier
from liveness.v1 import admin_pb2


class RelayAdmin(Protocol):
    async def status(self) -> RelayStatus: ...

    async def replay(self, selection: ReplaySelection) -> ReplayResult: ...


class RelayHandlers:
    def __init__(self, relay: RelayAdmin | None, clock: Clock) -> None:
        self._relay = relay
        self._clock = clock

    async def status(self) -> admin_pb2.GetRelayStatusResponse:
        if self._relay is None:
            raise RelayNotConfigured
        status = await self._relay.status()
        connection = admin_pb2.RelayConnection(
            servers=status.servers,
            stream=status.stream,
            relays_events=status.relays_events,
            connected=status.connected,
            last_error=status.last_error,
        )
        if status.last_error_wall_ms:
            connection.last_error_time.CopyFrom(wire.timestamp(status.last_error_wall_ms))
        shards = [
            admin_pb2.RelayShard(
                shard_id=shard.shard_id,
                postponed_tasks=shard.postponed_tasks,
                acknowledged_sequence=shard.acknowledged_seq,
                last_sequence=shard.last_seq,
                backlog=shard.backlog,
            )
            for shard in status.shards
        ]
        return admin_pb2.GetRelayStatusResponse(connections=[connection], shards=shards)

    async def replay(self, request: admin_pb2.ReplayRelayRequest) -> admin_pb2.ReplayRelayResponse:
        if not request.HasField("since"):
            raise InvalidField(field="since", rule="must be set")
        selection = ReplaySelection(
            since_wall_ms=self._clock.wall_ms() - duration_ms("since", request.since),
            namespace=optional_identifier("namespace", request.namespace),
            task_queue=optional_identifier("task_queue", request.task_queue),
            events=request.events,
        )
        if self._relay is None:
            raise RelayNotConfigured
        replayed = await self._relay.replay(selection)
        return admin_pb2.ReplayRelayResponse(
            reschedules=replayed.reschedules,
            events=replayed.events,
            duplicates=replayed.duplicates,
            refused=replayed.refused,
        )
