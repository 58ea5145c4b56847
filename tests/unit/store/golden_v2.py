"""The values and states that the golden rows of version 2 decode to: every kind of event, every field in use.

Two workers of namespace orders and a forgotten one; activities of workflow order-8 in every final state.
"""

from __future__ import annotations

from typing import Any

from liveness.domain.activity import Activity, ActivityState, EndedAttempt, ReleasedAttempt
from liveness.domain.events import (
    ActivityAttemptFailed,
    ActivityCancelled,
    ActivityCancelRequested,
    ActivityCompleted,
    ActivityEvent,
    ActivityFailed,
    ActivityGivenBack,
    ActivityHanded,
    ActivityHandedOn,
    ActivityMadeAvailable,
    ActivityQuarantined,
    ActivityReleased,
    ActivityScheduled,
    ActivityStarted,
    BindingsChanged,
    BindingsEnded,
    ConfigChanged,
    DisconnectGraceGranted,
    DrainBegun,
    LeaseRenewed,
    LeaseTermsChanged,
    Retry,
    SessionReplaced,
    ShardTaken,
    WorkerCleanedUp,
    WorkerDeactivated,
    WorkerDescribed,
    WorkerEvent,
    WorkerForgotten,
    WorkerPaused,
    WorkerRegistered,
    WorkerResumed,
    WorkerResurrected,
)
from liveness.domain.keys import ActivityId
from liveness.domain.worker import (
    NO_BINDINGS,
    NO_PROFILE,
    NO_STANDING,
    BoundActivity,
    InactiveReason,
    Standing,
    Worker,
    WorkerState,
    WorkerStatus,
)
from liveness.store.codec import LogEntry, RenewalBatch, RenewalState
from tests.unit.store.golden_v1 import CHARGE, MAIL, PROFILE, SHIP, WALL_MS, activation, without_wall_times

RETRY = Retry(initial_ms=500, coefficient=1.5, max_ms=60_000, max_attempts=5, max_deaths=0)


def id_of(name: str) -> ActivityId:
    return ActivityId("order-8", "läuft", name)


def bound(name: str, attempt: int) -> BoundActivity:
    return BoundActivity(*id_of(name), attempt, "bilder")


def log() -> list[LogEntry]:
    entries: list[LogEntry] = []

    def write(
        at_ms: int, event: Any, namespace: str | None, worker: str | None, workflow_id: str | None
    ) -> None:
        entries.append(
            LogEntry(len(entries) + 1, namespace, worker, workflow_id, WALL_MS + at_ms, at_ms, event)
        )

    def shard(at_ms: int, event: ShardTaken | RenewalBatch) -> None:
        write(at_ms, event, None, None, None)

    def worker(name: str, at_ms: int, event: WorkerEvent) -> None:
        write(at_ms, event, "orders", name, None)

    def activity(at_ms: int, event: ActivityEvent) -> None:
        write(at_ms, event, "orders", None, "order-8")

    def of(name: str, **fields: Any) -> dict[str, Any]:
        return {"run_id": "läuft", "activity_id": name, **fields}

    def held(name: str, worker: str, epoch: int, attempt: int, at_ms: int) -> dict[str, Any]:
        return of(name, worker=worker, epoch=epoch, attempt=attempt, at_ms=at_ms)

    # fmt: off
    shard(0, ShardTaken(epoch=2, owner="node-2 (process 2)"))
    write(10, ConfigChanged(set={"paused": 1.0}, unset=("max_worker_deaths",), reason="umzug 🚚"), "orders", None, None)
    worker("worker-1", 1_000, WorkerRegistered(**activation(
        bindings=(CHARGE,), profile=PROFILE, status=WorkerStatus.STARTING, last_error="nul \0 inside",
        successes=4, errors=1, loop_lag_ms=3,
    )))
    worker("worker-2", 1_500, WorkerRegistered(**activation(session_id="", sequence=0, at_ms=1_500)))
    shard(2_000, RenewalBatch([3, 4], [LeaseRenewed(2, 1_990, 5, 1), LeaseRenewed(0, 2_000, 0, 0)]))

    # resize fails once, is lost once, and completes.
    activity(2_100, ActivityScheduled(
        **of("resize"), activity_type="bild.größe", task_queue="bilder", input=b"\x00\xffinput", retry=RETRY,
        at_ms=2_100, due_ms=2_200,
    ))
    activity(2_200, ActivityMadeAvailable(**of("resize"), attempt=1, at_ms=2_200))
    activity(2_300, ActivityStarted(**held("resize", "worker-1", 1, 1, 2_300), verify_ms=12_300))
    worker("worker-1", 2_300, ActivityHanded(activity=bound("resize", 1)))
    worker("worker-1", 2_400, BindingsChanged(
        bound=(SHIP, MAIL), unbound=(CHARGE.id,), resync=False, confirmed=(id_of("resize"),)
    ))
    shard(2_400, RenewalBatch([3], [LeaseRenewed(3, 2_400, 9_223_372_036_854_775_807, 2)]))
    activity(2_500, ActivityAttemptFailed(**held("resize", "worker-1", 1, 1, 2_500), message="kaputt \0", due_ms=3_000))
    worker("worker-1", 2_500, BindingsEnded(ids=(id_of("resize"),), taken=False))
    activity(3_000, ActivityMadeAvailable(**of("resize"), attempt=2, at_ms=3_000))
    activity(3_100, ActivityStarted(**held("resize", "worker-2", 1, 2, 3_100), verify_ms=13_100))
    worker("worker-2", 3_100, ActivityHanded(activity=bound("resize", 2)))
    worker("worker-2", 3_200, DisconnectGraceGranted(grace_ms=700))
    worker("worker-2", 4_000, WorkerDeactivated(
        reason=InactiveReason.DISCONNECTED, detail="its stream broke", at_ms=4_000, cleanup_delay_ms=60_000
    ))
    activity(4_000, ActivityCancelRequested(
        **held("resize", "worker-2", 1, 2, 4_000), task_queue="bilder", token=b"\x00\xff", failures=2, deaths=1
    ))
    activity(4_000, ActivityReleased(**of("resize")))
    activity(4_000, ActivityMadeAvailable(**of("resize"), attempt=3, at_ms=4_000))
    activity(4_100, ActivityStarted(**held("resize", "worker-1", 1, 3, 4_100), verify_ms=14_100))
    activity(4_200, ActivityCompleted(**held("resize", "worker-1", 1, 3, 4_200), result=b"\x00\xffresult"))

    # crop is given back, fails finally and is retried by an operator.
    activity(5_000, ActivityScheduled(
        **of("crop"), activity_type="", task_queue="bilder", input=b"", retry=Retry(), at_ms=5_000, due_ms=5_000
    ))
    activity(5_100, ActivityStarted(**held("crop", "worker-1", 1, 1, 5_100), verify_ms=15_100))
    activity(5_200, ActivityGivenBack(**held("crop", "worker-1", 1, 1, 5_200), reason="released by its worker"))
    activity(5_200, ActivityMadeAvailable(**of("crop"), attempt=2, at_ms=5_200))
    activity(5_300, ActivityStarted(**held("crop", "worker-1", 1, 2, 5_300), verify_ms=15_300))
    activity(5_400, ActivityFailed(**held("crop", "worker-1", 1, 2, 5_400), message="no such file"))
    activity(5_500, ActivityMadeAvailable(**of("crop"), attempt=3, at_ms=5_500, fresh=True))

    # poison and moved were bound by heartbeats alone; dropped is cancelled; hold is held in the end.
    activity(6_000, ActivityCancelRequested(
        **held("poison", "worker-9", 7, 4, 6_000), task_queue="bilder", token=b"", failures=3, deaths=3
    ))
    activity(6_000, ActivityReleased(**of("poison")))
    activity(6_000, ActivityQuarantined(**of("poison"), deaths=3, at_ms=6_000))
    activity(6_100, ActivityCancelRequested(
        **held("moved", "worker-9", 7, 1, 6_100), task_queue="elsewhere", token=b"", failures=1, deaths=1
    ))
    activity(6_100, ActivityReleased(**of("moved"), attempt=2))
    activity(6_200, ActivityHandedOn(**of("moved"), at_ms=6_200))
    activity(6_300, ActivityScheduled(
        **of("dropped"), activity_type="t", task_queue="bilder", input=b"", retry=RETRY, at_ms=6_300, due_ms=99_000
    ))
    activity(6_400, ActivityCancelled(**of("dropped"), reason="nicht nötig", at_ms=6_400))
    activity(6_500, ActivityScheduled(
        **of("hold"), activity_type="t", task_queue="bilder", input=b"", retry=RETRY, at_ms=6_500, due_ms=6_500
    ))
    activity(6_600, ActivityStarted(**held("hold", "worker-1", 1, 1, 6_600), verify_ms=16_600))
    worker("worker-1", 6_600, ActivityHanded(activity=bound("hold", 1)))

    # worker-1 restarts, keeps its bindings, and is paused, drained and attached; worker-2 is resurrected.
    worker("worker-1", 7_000, SessionReplaced(**activation(
        session_id="session-b", epoch=2, at_ms=7_000, granted_ms=9_000, bindings=(bound("hold", 1),),
        profile=PROFILE, status=WorkerStatus.RUNNING, last_error="none", successes=7, errors=2, loop_lag_ms=20,
    )))
    worker("worker-1", 7_100, LeaseTermsChanged(granted_ms=10_000))
    worker("worker-1", 7_100, WorkerDescribed(
        profile=PROFILE._replace(current_job=""), status=WorkerStatus.RUNNING, last_error="", loop_lag_ms=1_500
    ))
    worker("worker-1", 7_200, ActivityHanded(activity=bound("crop", 3)))
    worker("worker-1", 7_300, BindingsEnded(ids=(id_of("crop"),), taken=True))
    worker("worker-1", 7_400, ActivityHanded(activity=bound("new", 1)))
    worker("worker-1", 7_500, WorkerPaused(reason="wartung"))
    worker("worker-1", 7_600, WorkerResumed())
    worker("worker-1", 7_700, WorkerPaused(reason=""))
    worker("worker-1", 7_800, DisconnectGraceGranted(grace_ms=5_000))
    worker("worker-1", 7_900, DrainBegun(reason="deploy", deadline_ms=67_900))
    worker("worker-2", 8_000, WorkerResurrected(**activation(
        session_id="session-c", sequence=9, epoch=2, at_ms=8_000, bindings=(SHIP,), status=WorkerStatus.PAUSED,
        resync=True, loop_lag_ms=9,
    )))
    worker("worker-3", 8_100, WorkerRegistered(**activation(at_ms=8_100)))
    worker("worker-3", 8_200, WorkerDeactivated(reason=InactiveReason.DRAINED, detail="drained", at_ms=8_200, cleanup_delay_ms=1))
    worker("worker-3", 8_300, WorkerCleanedUp(at_ms=8_300, tombstone_retention_ms=1))
    worker("worker-3", 8_400, WorkerForgotten())
    # fmt: on
    return entries


MEANING = log()

FINAL_WORKERS: dict[str, Worker | None] = {
    "worker-1": Worker(
        number=3,
        state=WorkerState.ACTIVE,
        session_id="session-b",
        sequence=1,
        epoch=2,
        granted_ms=10_000,
        renewed_ms=7_000,
        deadline_ms=17_000,
        bindings={id_of("hold"): bound("hold", 1), id_of("new"): bound("new", 1)},
        lost={id_of("crop"): bound("crop", 3)},
        superseded=("session-a",),
        profile=PROFILE._replace(current_job=""),
        status=WorkerStatus.RUNNING,
        last_error="",
        successes=7,
        errors=2,
        resync=False,
        inactive_reason=None,
        inactive_detail="",
        standing=Standing(
            paused=True,
            draining=True,
            drain_deadline_ms=67_900,
            grace_ms=5_000,
            loop_lag_ms=1_500,
            handed={id_of("hold"): True, id_of("new"): False},
        ),
        wall_offset_ms=WALL_MS,
        heartbeats=4,
    ),
    "worker-2": Worker(
        number=4,
        state=WorkerState.ACTIVE,
        session_id="session-c",
        sequence=9,
        epoch=2,
        granted_ms=30_000,
        renewed_ms=8_000,
        deadline_ms=38_000,
        bindings={SHIP.id: SHIP},
        lost={id_of("resize"): bound("resize", 2)},
        superseded=(),
        profile=NO_PROFILE,
        status=WorkerStatus.PAUSED,
        last_error="",
        successes=0,
        errors=0,
        resync=True,
        inactive_reason=None,
        inactive_detail="",
        standing=Standing(loop_lag_ms=9),
        wall_offset_ms=WALL_MS,
        heartbeats=3,
    ),
    "worker-3": None,
}
TOMBSTONE = Worker(
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
    inactive_reason=InactiveReason.DRAINED,
    inactive_detail="drained",
    standing=NO_STANDING,
)


def final(name: str, state: ActivityState, attempt: int, **fields: Any) -> Activity:
    return Activity(id_of(name), state, attempt, "bilder", b"", ())._replace(**fields)


RESIZE = final(
    "resize",
    ActivityState.COMPLETED,
    3,
    token=b"\x00\xff",
    releases=(ReleasedAttempt("worker-2", 1, 2),),
    type="bild.größe",
    input=b"\x00\xffinput",
    retry=RETRY,
    since_ms=4_200,
    failures=2,
    last_failure="kaputt \0",
    result=b"\x00\xffresult",
    end=EndedAttempt("worker-1", 1, 3, "ActivityCompleted"),
)
CROP = final(
    "crop",
    ActivityState.AVAILABLE,
    3,
    retry=Retry(initial_ms=1_000, coefficient=2.0, max_ms=100_000, max_attempts=0, max_deaths=None),
    since_ms=5_500,
    last_failure="no such file",
    end=EndedAttempt("worker-1", 1, 2, "ActivityFailed"),
)
POISON = final(
    "poison",
    ActivityState.QUARANTINED,
    4,
    releases=(ReleasedAttempt("worker-9", 7, 4),),
    since_ms=6_000,
    failures=3,
    deaths=3,
    last_failure="quarantined: 3 workers in a row died with it",
)
MOVED = final(
    "moved",
    ActivityState.HANDED_ON,
    2,
    task_queue="elsewhere",
    releases=(ReleasedAttempt("worker-9", 7, 1),),
    since_ms=6_200,
    failures=1,
    deaths=1,
)
DROPPED = final(
    "dropped",
    ActivityState.CANCELLED,
    1,
    type="t",
    retry=RETRY,
    since_ms=6_400,
    last_failure="nicht nötig",
)
HOLD = final(
    "hold",
    ActivityState.STARTED,
    1,
    type="t",
    retry=RETRY,
    worker="worker-1",
    epoch=1,
    since_ms=6_600,
    due_ms=16_600,
)
FINAL_ACTIVITIES = {
    activity.id: activity._replace(since_wall_ms=WALL_MS + activity.since_ms)
    for activity in (RESIZE, CROP, POISON, MOVED, DROPPED, HOLD)
}

SETTINGS = {"paused": 1.0, "worker_heartbeat_rate": 0.5}
TAKE_OVERS = (0, 12_345)
PULSES = [RenewalState(3, 1, 7_000, 7, 2, False), RenewalState(4, 9, 8_000, 0, 0, True)]
STORED_WORKERS = without_wall_times({"worker": FINAL_WORKERS["worker-1"], "tombstone": TOMBSTONE})
STORED_ACTIVITIES = {"completed": RESIZE, "held": HOLD, "quarantined": POISON}
STORED_BINDING = CHARGE
