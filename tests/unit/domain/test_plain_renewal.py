"""The fast path for a plain heartbeat gives the same result as deciding and evolving."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from liveness.domain import decider
from liveness.domain.commands import Heartbeat
from liveness.domain.errors import StaleHeartbeat, WorkerCleanedUp
from liveness.domain.events import LeaseRenewed, WorkerEvent
from liveness.domain.fold import evolve
from liveness.domain.keys import WorkerKey
from liveness.domain.plain_renewal import renew_if_plain
from liveness.domain.policy import Policy
from liveness.domain.worker import (
    NO_BINDINGS,
    NO_PROFILE,
    NO_STANDING,
    BoundActivity,
    Standing,
    Worker,
    WorkerState,
    WorkerStatus,
)
from tests.unit.domain.strategies import make_worker

KEY = WorkerKey("default", "worker-1")
HELD = BoundActivity("flow", "run", "activity", 1, "queue", b"token")
COUNTS = st.one_of(st.integers(0, 3), st.integers(0, 2**40), st.integers(2**63 - 3, 2**63 - 1))
WALL_OFFSET_MS = 1_790_000_000_000

workers = st.builds(
    make_worker,
    number=st.integers(1, 100),
    state=st.sampled_from(WorkerState),
    session_id=st.just("session"),
    sequence=st.integers(0, 6),
    epoch=st.integers(1, 5),
    granted_ms=st.integers(1_000, 3_600_000),
    renewed_ms=st.integers(0, 1_000),
    deadline_ms=st.integers(1_000, 10_000),
    bindings=st.sampled_from([NO_BINDINGS, {HELD.id: HELD}]),
    lost=st.sampled_from([NO_BINDINGS, {HELD.id: HELD}]),
    superseded=st.sampled_from([(), ("older",)]),
    profile=st.just(NO_PROFILE._replace(task_queue="queue")),
    status=st.sampled_from(WorkerStatus),
    last_error=st.sampled_from(["", "broken"]),
    successes=COUNTS,
    errors=COUNTS,
    resync=st.booleans(),
    inactive_reason=st.none(),
    inactive_detail=st.just(""),
    standing=st.sampled_from(
        [
            NO_STANDING,
            Standing(paused=True, loop_lag_ms=7, handed={HELD.id: False}),
            Standing(draining=True, drain_deadline_ms=5_000, grace_ms=4_000, handed={HELD.id: True}),
        ]
    ),
)


def decide_and_evolve(worker: Worker, beat: Heartbeat, at_ms: int) -> tuple[WorkerEvent, ...]:
    try:
        return decider.heartbeat(KEY, worker, beat, at_ms)
    except (StaleHeartbeat, WorkerCleanedUp):
        return ()


@given(workers, st.integers(0, 9), COUNTS, COUNTS, st.integers(1_000, 10_000))
def test_a_plain_renewal_equals_the_result_of_decide_and_evolve(
    worker: Worker, sequence: int, successes: int, errors: int, at_ms: int
) -> None:
    beat = Heartbeat(
        session_id="session",
        sequence=sequence,
        requested_ms=worker.granted_ms,
        bound=(),
        unbound=(),
        full_bindings=False,
        profile=worker.profile,
        status=worker.status,
        last_error="",
        successes=successes,
        errors=errors,
        policy=Policy(),
        loop_lag_ms=worker.standing.loop_lag_ms,
    )
    fast = renew_if_plain(worker, sequence, successes, errors, at_ms, WALL_OFFSET_MS)
    events = decide_and_evolve(worker, beat, at_ms)
    if fast is None:
        # The fast path declines: the heartbeat is no plain renewal, may report an error, or a counter is at its maximum.
        counted_out = max(worker.successes + successes, worker.errors + errors) > decider.COUNTER_MAX
        may_report = errors and worker.last_error
        assert counted_out or may_report or not any(isinstance(event, LeaseRenewed) for event in events)
    else:
        event, after = fast
        assert (event,) == events
        assert type(event) is LeaseRenewed
        assert after == evolve(worker, event, 1, at_ms + WALL_OFFSET_MS)
        assert type(after) is Worker


def test_a_repeated_or_older_sequence_is_no_plain_renewal() -> None:
    worker = Worker(
        number=1,
        state=WorkerState.ACTIVE,
        session_id="session",
        sequence=5,
        epoch=1,
        granted_ms=1_000,
        renewed_ms=0,
        deadline_ms=1_000,
        bindings=NO_BINDINGS,
        lost=NO_BINDINGS,
        superseded=(),
        profile=NO_PROFILE,
        status=next(iter(WorkerStatus)),
        last_error="",
        successes=0,
        errors=0,
        resync=False,
        inactive_reason=None,
        inactive_detail="",
    )
    assert renew_if_plain(worker, 6, 1, 0, 10, WALL_OFFSET_MS) is not None
    assert renew_if_plain(worker, 5, 1, 0, 10, WALL_OFFSET_MS) is None
    assert renew_if_plain(worker, 4, 1, 0, 10, WALL_OFFSET_MS) is None
