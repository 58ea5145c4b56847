"""What the follower knows about one worker: its row, what liveness has recorded, and for how long it has been silent."""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from liveness.doors.pgai.counting import (
    Count,
    Recorded,
    Totals,
    count,
    count_sequence,
    fence_sequence,
    new_life,
    new_session,
    recorded_from_labels,
)
from liveness.doors.pgai.rows import ProcessRow
from liveness.v1.worker_pb2 import (
    WORKER_STATE_ACTIVE,
    WORKER_STATE_CLEANED_UP,
    WORKER_STATUS_RUNNING,
    Worker,
    WorkerHeartbeat,
)

DOOR_LABEL = "door"
DOOR = "pgai"
LEASE_MS_MIN = 30_000
"""What a shorter lease is rounded up to, so that another follower has the time to take over. This follower itself ends the lease of a
worker that is silent for less."""
LAST_LEASE_MS = 1_000
"""What is left to a worker that has been silent for long enough. The namespace may grant more."""

ALIVE = "alive"
SILENT = "silent for three heartbeat intervals"
SESSION_ENDED = "its heartbeat session has ended"
SAID_GOODBYE = "said goodbye"
CUT_OFF = "no heartbeats since the database restarted"
ENDED_BEFORE = "its lease had ended before"


@dataclass(slots=True)
class FollowedWorker:
    id: str
    row: ProcessRow | None = None
    """None: not read since this follower began."""
    recorded: Recorded | None = None
    """None: not asked yet, or to be asked again."""
    is_known: bool = False
    """Whether liveness has recorded anything in the present session."""
    is_fenced: bool = False
    counted: Totals | None = None
    """What this follower knows to be counted, also after liveness has cleaned the worker up."""
    counting: tuple[WorkerHeartbeat, Count] | None = None
    """A heartbeat of which it is not known whether it was recorded. It is sent again as it was."""
    is_late: bool = False
    """Its last heartbeat was too old when this follower first read it."""
    is_cut_off: bool = False
    """Its heartbeats may have ended for good with a restart of the database, while it works on."""
    silent_ms: int = 0
    progress_s: float = 0.0
    granted_ms: int = LEASE_MS_MIN
    renewed_ms: int = 0
    wants_renewal: bool = False
    retry_ms: int = 0
    had_session: bool = False
    missed_sessions: int = 0
    """In how many readings in a row its session was missing."""
    heartbeats_in_session: int = 0
    suspected: str = ""
    """Why its lease was shortened; empty if it was not."""
    says_goodbye: bool = False
    has_ended: bool = False
    """Its lease is over, and nothing has been heard of it since."""
    verdict: str = ALIVE

    def hear(self) -> None:
        self.silent_ms = 0
        self.suspected = ""
        self.has_ended = False
        self.says_goodbye = False
        self.missed_sessions = 0
        self.retry_ms = 0

    @property
    def needs_count(self) -> bool:
        """Whether the row has heartbeats that liveness may not have recorded."""
        return self.row is not None and not (self.is_fenced and self.is_counted)

    @property
    def is_counted(self) -> bool:
        recorded, row = self.recorded, self.row
        return (
            recorded is not None and row is not None and recorded.sequence >= count_sequence(row.heartbeats)
        )

    @property
    def lease_ms(self) -> int:
        if self.row is None:
            return self.granted_ms
        return LAST_LEASE_MS if self.is_late else max(self.row.silence_ms, LEASE_MS_MIN)

    def adopt(self, worker: Worker | None) -> None:
        """Take over what liveness has recorded. None: nothing."""
        row = self.row
        if worker is None:
            self.recorded, self.is_known = Recorded(self.id), False
            return
        totals = Totals(worker.successes, worker.errors)
        self.has_ended = worker.state != WORKER_STATE_ACTIVE
        if worker.HasField("granted_lease_duration"):
            self.granted_ms = worker.granted_lease_duration.ToMilliseconds()
        recorded = recorded_from_labels(self.id, worker.sequence, totals, worker.labels)
        self.recorded, self.is_known = recorded, True
        if row is None:
            return
        if worker.state == WORKER_STATE_CLEANED_UP:
            # Its labels are gone. In its first life there were no offsets.
            first_life = totals if worker.session_id == self.id else row.totals
            if worker.sequence < count_sequence(row.heartbeats):
                self.recorded, self.is_known = (
                    new_life(self.counted or first_life, self.id, worker.lease_epoch),
                    False,
                )
            return
        if worker.sequence > count_sequence(row.heartbeats):
            self.recorded, self.is_known = new_session(recorded, self.id, worker.lease_epoch), False

    def fence(self) -> WorkerHeartbeat | None:
        """The heartbeat that makes all those of an earlier follower stale; None if there is no need for it."""
        recorded, row = self.recorded, self.row
        assert recorded is not None
        assert row is not None
        if self.is_known and recorded.sequence >= fence_sequence(row.heartbeats):
            return None
        beat = self._heartbeat(recorded, self.lease_ms)
        beat.sequence = fence_sequence(row.heartbeats)
        if not self.is_known:
            self._describe(beat, recorded, row)
            beat.new_incarnation = beat.full_bindings = True
        return beat

    def next_count(self) -> tuple[WorkerHeartbeat, Count]:
        recorded, row = self.recorded, self.row
        assert recorded is not None
        assert row is not None
        if self.counting is None:
            change = count(recorded, row.heartbeats, row.totals)
            beat = self._heartbeat(recorded, self.lease_ms)
            beat.sequence = change.after.sequence
            beat.successes, beat.errors = change.successes, change.errors
            beat.last_error = row.last_error
            self._describe(beat, change.after, row)
            self.counting = beat, change
        return self.counting

    def renewal(self, lease_ms: int | None = None) -> WorkerHeartbeat:
        """A heartbeat that says nothing but that the lease runs from now. Without a number: it may arrive at any time."""
        assert self.recorded is not None
        return self._heartbeat(self.recorded, self.lease_ms if lease_ms is None else lease_ms)

    def _heartbeat(self, recorded: Recorded, lease_ms: int) -> WorkerHeartbeat:
        return WorkerHeartbeat(
            worker_instance_key=self.id,
            session_id=recorded.session_id,
            lease_duration=Duration(seconds=lease_ms // 1_000, nanos=lease_ms % 1_000 * 1_000_000),
            status=WORKER_STATUS_RUNNING,
        )

    def _describe(self, beat: WorkerHeartbeat, recorded: Recorded, row: ProcessRow) -> None:
        beat.worker_identity = f"pgai worker {self.id.partition('-')[0]}"
        beat.sdk_name, beat.sdk_version = DOOR, row.version
        if row.started_s > 0:
            beat.start_time.CopyFrom(Timestamp(seconds=min(int(row.started_s), 253_402_300_799)))
        beat.labels.update(recorded.labels | {DOOR_LABEL: DOOR, "pgai-interval": f"{row.interval_ms}ms"})
