"""Drive one registered component command by command: decide and evolve in memory, as a shard does."""

from __future__ import annotations

from typing import Any

from liveness.domain import decider, registry_decider
from liveness.domain.events import WorkerEvent
from liveness.domain.fold import evolve
from liveness.domain.keys import WorkerKey
from liveness.domain.policy import Policy
from liveness.domain.registry import Entry, live_replicas
from liveness.domain.registry_decider import Registration
from liveness.domain.worker import Profile, Worker
from tests.unit.domain.worker_scenario import heartbeat

KEY = WorkerKey("orders", "broker:nats")
POLICY = Policy()
WALL_MS = 1_790_000_000_000


class RegistryScenario:
    def __init__(self) -> None:
        self.worker: Worker | None = None
        self.now_ms = 0
        self.log: list[WorkerEvent] = []

    @property
    def known(self) -> Worker:
        assert self.worker is not None
        return self.worker

    @property
    def entry(self) -> Entry:
        assert self.known.standing.entry is not None
        return self.known.standing.entry

    @property
    def replicas(self) -> list[str]:
        return [
            replica.session_id for replica in live_replicas(self.entry, self.known.granted_ms, self.now_ms)
        ]

    def wait(self, ms: int) -> RegistryScenario:
        self.now_ms += ms
        return self

    def register(
        self,
        session_id: str = "a",
        *,
        sequence: int = 0,
        principal: str = "",
        profile: Any = None,
        **fields: Any,
    ) -> tuple[WorkerEvent, ...]:
        beat = heartbeat(
            session_id=session_id,
            sequence=sequence,
            principal=principal,
            profile=profile or Profile(host_name="host", process_id=session_id),
        )
        registration = Registration(beat=beat, **fields)
        return self._apply(
            registry_decider.register(KEY, self.worker, registration, self.now_ms, WALL_MS + self.now_ms)
        )

    def beat(
        self, session_id: str = "", *, status: str = "", sequence: int = 0, **fields: Any
    ) -> tuple[WorkerEvent, ...]:
        beat = heartbeat(session_id=session_id, sequence=sequence, **fields)
        return self._apply(
            registry_decider.heartbeat(KEY, self.worker, beat, status, self.now_ms, WALL_MS + self.now_ms)
        )

    def deregister(self, session_id: str = "", principal: str = "") -> tuple[WorkerEvent, ...]:
        return self._apply(
            registry_decider.deregister(KEY, self.worker, session_id, "done", POLICY, self.now_ms, principal)
        )

    def expire(self) -> RegistryScenario:
        """Let the lease end, and its worker become INACTIVE."""
        self.now_ms = max(self.now_ms, self.known.deadline_ms)
        self._apply(decider.expire_lease(self.known, POLICY, self.now_ms))
        return self

    def clean_up(self) -> RegistryScenario:
        self.now_ms = max(self.now_ms, self.known.deadline_ms)
        self._apply(decider.clean_up(self.known, POLICY, self.now_ms))
        return self

    def _apply(self, events: tuple[WorkerEvent, ...]) -> tuple[WorkerEvent, ...]:
        for event in events:
            self.log.append(event)
            self.worker = evolve(self.worker, event, len(self.log), WALL_MS + self.now_ms)
        return events
