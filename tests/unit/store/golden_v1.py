"""The values and states that the golden rows of version 1 decode to. Frozen."""

from __future__ import annotations

from typing import Any

from liveness.domain.activity import Activity, ActivityState, ReleasedAttempt
from liveness.domain.events import (
    ActivityCancelRequested,
    ActivityMadeAvailable,
    ActivityReleased,
    BindingsChanged,
    ConfigChanged,
    Event,
    LeaseRenewed,
    LeaseTermsChanged,
    SessionReplaced,
    ShardTaken,
    WorkerCleanedUp,
    WorkerDeactivated,
    WorkerDescribed,
    WorkerForgotten,
    WorkerRegistered,
    WorkerResurrected,
)
from liveness.domain.keys import ActivityId
from liveness.domain.worker import (
    NO_BINDINGS,
    NO_PROFILE,
    BoundActivity,
    InactiveReason,
    Profile,
    Worker,
    WorkerState,
    WorkerStatus,
)
from liveness.store.codec import LogEntry, RenewalBatch, RenewalState

WALL_MS = 1_790_000_000_000

CHARGE = BoundActivity("order-7", "run-1", "charge", 1, "payments", b"\x00\xfftoken")
SHIP = BoundActivity("order-7", "run-1", "ship", 3, "parcels")
MAIL = BoundActivity("bestellung-ü", "läuft", "e-mail 📧", 2, "mails")

PROFILE = Profile(
    worker_identity="4711@host-1",
    task_queue="payments",
    build_id="2026.11",
    sdk_name="liveness-python",
    sdk_version="0.1.0",
    host_name="host-1",
    process_id="4711",
    start_time_ns=1_789_999_999_123_456_789,
    labels=(("rack", "r1"), ("zone", "zürich")),
    capabilities=("gpu", "nul \0 inside"),
    current_job="charging order-7",
)


def about(worker: str | None, observed_ms: int, event: Event | RenewalBatch, **position: Any) -> LogEntry:
    namespace = position.get("namespace", "orders" if worker else None)
    return LogEntry(
        position["seq"],
        namespace,
        worker,
        position.get("workflow_id"),
        WALL_MS + observed_ms,
        observed_ms,
        event,
    )


def activation(**changes: Any) -> dict[str, Any]:
    return {
        "session_id": "session-a",
        "sequence": 1,
        "epoch": 1,
        "at_ms": 1_000,
        "granted_ms": 30_000,
        "bindings": (),
        "profile": NO_PROFILE,
        "status": WorkerStatus.UNSPECIFIED,
        "last_error": "",
        "successes": 0,
        "errors": 0,
        "resync": False,
    } | changes


def without_wall_times(workers: dict[str, Worker | None]) -> dict[str, Worker | None]:
    """Workers as the rows of versions 1 to 4 hold them: these do not store when the last heartbeat came."""
    return {
        name: worker and worker._replace(wall_offset_ms=None)
        for name, worker in without_counts(workers).items()
    }


def without_counts(workers: dict[str, Worker | None]) -> dict[str, Worker | None]:
    """Workers as the rows of versions 1 to 10 hold them: these do not store how many heartbeats they sent."""
    return {name: worker and worker._replace(heartbeats=0) for name, worker in workers.items()}


MEANING: list[LogEntry] = [
    about(None, 0, ShardTaken(epoch=1, owner="node-1 (process 1)"), seq=1),
    about(None, 10, ConfigChanged(set={"cleanup_delay_ms": 60_000.0, "worker_heartbeat_rate": 0.5}, unset=("max_workers",)), seq=2, namespace="orders"),
    about("worker-1", 1_000, WorkerRegistered(**activation(
        bindings=(CHARGE,), profile=PROFILE, status=WorkerStatus.STARTING, last_error="nul \0 inside",
        successes=4, errors=1,
    )), seq=3),
    about("worker-2", 1_500, WorkerRegistered(**activation(session_id="", sequence=0, at_ms=1_500)), seq=4),
    about(None, 2_000, RenewalBatch([3, 4], [LeaseRenewed(2, 1_990, 5, 1), LeaseRenewed(0, 2_000, 0, 0)]), seq=5),
    about("worker-1", 3_000, LeaseTermsChanged(granted_ms=10_000), seq=6),
    about("worker-1", 3_000, BindingsChanged(bound=(SHIP, MAIL), unbound=(CHARGE.id,), resync=False), seq=7),
    about("worker-1", 3_000, WorkerDescribed(profile=PROFILE._replace(current_job=""), status=WorkerStatus.RUNNING, last_error="none"), seq=8),
    about(None, 3_000, RenewalBatch([3], [LeaseRenewed(5, 3_000, 9_223_372_036_854_775_807, 2)]), seq=9),
    about("worker-1", 4_000, SessionReplaced(**activation(
        session_id="session-b", epoch=2, at_ms=4_000, granted_ms=5_000, bindings=(SHIP,),
        profile=PROFILE, status=WorkerStatus.RUNNING, last_error="none", successes=7, errors=2,
    )), seq=10),
    about("worker-1", 9_100, WorkerDeactivated(
        reason=InactiveReason.LEASE_EXPIRED, detail="no heartbeat for 5100 ms of a 5000 ms lease", at_ms=9_100,
        cleanup_delay_ms=60_000,
    ), seq=11),
    about(None, 9_200, ActivityCancelRequested(
        run_id="läuft", activity_id="e-mail 📧", attempt=2, task_queue="mails", token=b"\x00\xff", worker="worker-1", epoch=1,
    ), seq=12, namespace="orders", workflow_id="bestellung-ü"),
    about(None, 9_200, ActivityReleased(run_id="läuft", activity_id="e-mail 📧"), seq=13, namespace="orders", workflow_id="bestellung-ü"),
    about(None, 9_200, ActivityMadeAvailable(run_id="läuft", activity_id="e-mail 📧", attempt=3), seq=14, namespace="orders", workflow_id="bestellung-ü"),
    about("worker-1", 12_000, WorkerResurrected(**activation(
        session_id="session-b", sequence=9, epoch=3, at_ms=12_000, bindings=(CHARGE,), profile=PROFILE,
        status=WorkerStatus.PAUSED, successes=8, errors=2, resync=True,
    )), seq=15),
    about("worker-2", 13_000, WorkerDeactivated(reason=InactiveReason.SHUTDOWN, detail="", at_ms=13_000, cleanup_delay_ms=0), seq=16),
    about("worker-2", 13_100, WorkerCleanedUp(at_ms=13_100, tombstone_retention_ms=2_592_000_000), seq=17),
    about("worker-3", 13_200, WorkerRegistered(**activation(at_ms=13_200)), seq=18),
    about("worker-3", 13_300, WorkerDeactivated(reason=InactiveReason.FORCED, detail="by an operator", at_ms=13_300, cleanup_delay_ms=1), seq=19),
    about("worker-3", 13_400, WorkerCleanedUp(at_ms=13_400, tombstone_retention_ms=0), seq=20),
    about("worker-3", 13_500, WorkerForgotten(), seq=21),
    about(None, 14_000, RenewalBatch([3], [LeaseRenewed(10, 14_000, 8, 3)]), seq=22),
]  # fmt: skip

FINAL_WORKERS: dict[str, Worker | None] = {
    "worker-1": Worker(
        number=3,
        state=WorkerState.ACTIVE,
        session_id="session-b",
        sequence=10,
        epoch=3,
        granted_ms=30_000,
        renewed_ms=14_000,
        deadline_ms=44_000,
        bindings={CHARGE.id: CHARGE},
        lost={SHIP.id: SHIP},
        superseded=("session-a",),
        profile=PROFILE,
        status=WorkerStatus.PAUSED,
        last_error="",
        successes=8,
        errors=3,
        resync=True,
        inactive_reason=None,
        inactive_detail="",
        wall_offset_ms=WALL_MS,
        heartbeats=6,
    ),
    "worker-2": Worker(
        number=4,
        state=WorkerState.CLEANED_UP,
        session_id="",
        sequence=0,
        epoch=1,
        granted_ms=30_000,
        renewed_ms=2_000,
        deadline_ms=2_592_013_100,
        bindings=NO_BINDINGS,
        lost=NO_BINDINGS,
        superseded=(),
        profile=NO_PROFILE,
        status=WorkerStatus.UNSPECIFIED,
        last_error="",
        successes=0,
        errors=0,
        resync=False,
        inactive_reason=InactiveReason.SHUTDOWN,
        inactive_detail="",
        wall_offset_ms=WALL_MS,
        heartbeats=2,
    ),
    "worker-3": None,
}
MOVED_MAIL = Activity(
    id=ActivityId("bestellung-ü", "läuft", "e-mail 📧"),
    state=ActivityState.AVAILABLE,
    attempt=3,
    task_queue="mails",
    token=b"\x00\xff",
    releases=(ReleasedAttempt("worker-1", 1, 2),),
    since_wall_ms=WALL_MS + 9_200,
)
FINAL_ACTIVITIES = {MOVED_MAIL.id: MOVED_MAIL}

SETTINGS = {"cleanup_delay_ms": 60_000.0, "worker_heartbeat_rate": 0.5}
TAKE_OVERS = (0, 12_345)
PULSES = [RenewalState(3, 10, 14_000, 8, 3, True), RenewalState(4, 0, 2_000, 0, 0, False)]
STORED_WORKERS = without_wall_times(
    {"worker": FINAL_WORKERS["worker-1"], "tombstone": FINAL_WORKERS["worker-2"]}
)
STORED_ACTIVITIES = {"activity": MOVED_MAIL._replace(since_wall_ms=None)}
STORED_BINDING = CHARGE
