"""What a bridge knows about one Temporal worker, and what it still has to tell liveness about it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from liveness.bridges.temporal.binding_record import BindingRecord, identifier
from liveness.bridges.temporal.messages import STATUS_SHUTTING_DOWN, Caller, WorkerBeat
from liveness.bridges.temporal.settings import (
    DEFAULT_INTERVAL_MS,
    INTERVALS_PER_LEASE,
    UNHEARD_LEASE_MS,
    BridgeSettings,
)
from liveness.v1.worker_pb2 import (
    WORKER_STATUS_RUNNING,
    WORKER_STATUS_STOPPING,
    ActivityRef,
    Worker,
    WorkerHeartbeat,
)

ENGINE_LABEL = "engine"
INTERVAL_LABEL = "temporal-heartbeat-interval"
DEPLOYMENT_LABEL = "temporal-deployment"
SUSPECTED_LABEL = "temporal-suspected"
UI_LABEL = "temporal-ui"
NO_HEARTBEATS = "none"
CHANGES_MAX = 200
"""The most binding changes that one heartbeat of liveness may name."""
HELD_MAX = 1_000
INTERVAL_STEP_MS = 500


@dataclass(slots=True)
class PendingBind:
    reference: ActivityRef
    recorded: asyncio.Future[str]
    """Ends with "" once the binding is durable, or with the reason why it is not."""


@dataclass(slots=True)
class WorkerEntry:
    namespace: str
    key: str
    heard_ms: int
    """When it called last, on the bridge's clock; moved on by the time in which the bridge could not listen."""
    profile: WorkerHeartbeat = field(default_factory=WorkerHeartbeat)
    is_described: bool = False
    """Whether the profile comes from the worker's own heartbeat, which tells more than a poll."""
    was_heard: bool = False
    """Whether it has called through this bridge."""
    is_loaded: bool = False
    """Whether this bridge has read what liveness knows about it."""
    deployment: str = ""
    """The name of its worker deployment; its version is the build id."""
    interval_ms: int = 0
    has_heartbeats: bool = False
    is_stopping: bool = False
    has_said_goodbye: bool = False
    held: dict[bytes, ActivityRef] = field(default_factory=dict)
    """By task token: what it holds, recorded or not."""
    held_since_ms: dict[bytes, int] = field(default_factory=dict)
    idle_since_ms: int | None = None
    """Since when its heartbeats have said that no activity slot is in use."""
    to_bind: dict[bytes, PendingBind] = field(default_factory=dict)
    to_unbind: dict[bytes, ActivityRef] = field(default_factory=dict)
    wants_renewal: bool = False
    is_urgent: bool = False
    suspect_lease_ms: int = 0
    """The shortened lease to send; 0 if it is not suspect."""
    suspected: str = ""
    """Why its lease was shortened last; empty once it calls again."""
    is_sending: bool = False
    sent_ms: int = -1_000_000
    retry_ms: int = 0
    """Not before this time; for a worker that liveness told to wait."""
    recorded_s: float = 0.0
    """When liveness recorded this bridge's last heartbeat, by the wall clock of liveness."""
    life: int = 1
    """Rises when liveness has cleaned the key up. All bridges find the same number, and with it the same session."""
    first_seen_ms: int = 0
    polls: set[asyncio.Future[bytes]] = field(default_factory=set)
    """Its polls that wait at Temporal."""
    open_calls: dict[str, int] = field(default_factory=dict)
    """By connection: how many calls of the worker are open; 0 for the one that it used last."""

    def hear(self, now_ms: int) -> None:
        self.heard_ms = now_ms
        self.was_heard = True
        if self.suspected:
            self.suspected = ""
            self.suspect_lease_ms = 0
            self.is_urgent = True
        self.wants_renewal = True

    def describe_by_poll(self, caller: Caller) -> None:
        if self.is_described:
            return
        self.profile.worker_identity = caller.identity
        self.profile.task_queue = (
            identifier(caller.task_queue) if caller.task_queue else self.profile.task_queue
        )
        self.profile.build_id = caller.build_id or self.profile.build_id

    def describe_by_heartbeat(self, beat: WorkerBeat) -> None:
        self.is_described = self.has_heartbeats = True
        if beat.interval_ms:
            # What it measured is an interval plus a little jitter; a constant text keeps renewals plain.
            self.interval_ms = max(round(beat.interval_ms / INTERVAL_STEP_MS), 1) * INTERVAL_STEP_MS
        profile = self.profile
        profile.worker_identity = beat.identity
        profile.task_queue = identifier(beat.task_queue) if beat.task_queue else ""
        profile.build_id = beat.build_id or profile.build_id
        self.deployment = beat.deployment
        profile.sdk_name = beat.sdk_name
        profile.sdk_version = beat.sdk_version
        profile.host_name = beat.host_name
        profile.process_id = beat.process_id
        if beat.start_time_s:
            profile.start_time.CopyFrom(Timestamp(seconds=beat.start_time_s))
        self.is_stopping = self.is_stopping or beat.status >= STATUS_SHUTTING_DOWN

    def load(self, worker: Worker, now_ms: int) -> None:
        """Take over what another bridge, or an earlier run of this one, has recorded."""
        self.is_loaded = True
        interval = worker.labels.get(INTERVAL_LABEL, "")
        if not self.has_heartbeats and interval.endswith("ms") and interval[:-2].isdigit():
            self.has_heartbeats, self.interval_ms = True, int(interval[:-2])
        if not self.is_described and (worker.sdk_name or not self.profile.worker_identity):
            self.is_described = bool(worker.sdk_name)
            for name in (
                "worker_identity",
                "task_queue",
                "build_id",
                "sdk_name",
                "sdk_version",
                "host_name",
                "process_id",
            ):
                setattr(self.profile, name, getattr(worker, name))
            self.deployment = worker.labels.get(DEPLOYMENT_LABEL, "")
            if worker.HasField("start_time"):
                self.profile.start_time.CopyFrom(worker.start_time)
        if not self.was_heard and (why := worker.labels.get(SUSPECTED_LABEL)):
            # What this bridge has to tell about the worker is no sign of life.
            self.suspected, self.suspect_lease_ms = why, worker.granted_lease_duration.ToMilliseconds()
        for reference in (*worker.bound_activities, *worker.cancel_activities):
            record = BindingRecord.decode(reference.token)
            if record is None or record.task_token in self.held or record.task_token in self.to_unbind:
                continue
            self.held[record.task_token] = reference
            self.held_since_ms[record.task_token] = now_ms

    def lease_ms(self, settings: BridgeSettings) -> int:
        """How long it may be silent while a bridge listens."""
        return settings.lease_ms or INTERVALS_PER_LEASE * (self.interval_ms or DEFAULT_INTERVAL_MS)

    def next_heartbeat(
        self, settings: BridgeSettings
    ) -> tuple[WorkerHeartbeat, dict[bytes, PendingBind], dict[bytes, ActivityRef]]:
        """The heartbeat to send to liveness, and the changes in it."""
        binds = dict(list(self.to_bind.items())[:CHANGES_MAX])
        unbinds = dict(list(self.to_unbind.items())[: CHANGES_MAX - len(binds)])
        beat = WorkerHeartbeat()
        beat.CopyFrom(self.profile)
        beat.worker_instance_key = self.key
        beat.status = WORKER_STATUS_STOPPING if self.is_stopping else WORKER_STATUS_RUNNING
        beat.lease_duration.CopyFrom(_duration(self._granted_ms(settings)))
        beat.session_id, beat.new_incarnation = self.session_id, self.life > 1
        beat.labels.update(self._labels(settings))
        beat.bound_activities.extend(bind.reference for bind in binds.values())
        beat.unbound_activities.extend(unbinds.values())
        return beat, binds, unbinds

    def _granted_ms(self, settings: BridgeSettings) -> int:
        if self.suspect_lease_ms:
            return self.suspect_lease_ms
        if not self.has_heartbeats:
            return UNHEARD_LEASE_MS
        return self.lease_ms(settings) + settings.restart_allowance_ms

    def _labels(self, settings: BridgeSettings) -> Mapping[str, str]:
        interval = NO_HEARTBEATS
        if self.has_heartbeats:
            interval = f"{self.interval_ms or DEFAULT_INTERVAL_MS}ms"
        labels = {ENGINE_LABEL: "temporal", INTERVAL_LABEL: interval}
        if self.deployment:
            labels[DEPLOYMENT_LABEL] = identifier(self.deployment)
        if self.suspected:
            labels[SUSPECTED_LABEL] = self.suspected
        if settings.temporal_ui:
            labels[UI_LABEL] = settings.temporal_ui
        return labels

    @property
    def session_id(self) -> str:
        """A key of Temporal's is one process, so one session is enough; several bridges speak in it."""
        return "temporal" if self.life == 1 else f"temporal-{self.life}"

    @property
    def has_changes(self) -> bool:
        return bool(self.to_bind or self.to_unbind)


def _duration(ms: int) -> Duration:
    return Duration(seconds=ms // 1_000, nanos=ms % 1_000 * 1_000_000)
