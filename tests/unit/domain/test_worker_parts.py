"""A worker in memory, its own part and the part that it shares, shows all the fields that it was made of."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from liveness.domain.worker import (
    NO_BINDINGS,
    NO_PROFILE,
    NO_STANDING,
    WORKER_FIELDS,
    BoundActivity,
    InactiveReason,
    Profile,
    Standing,
    Worker,
    WorkerState,
    WorkerStatus,
)

TEXTS = st.text(max_size=20)
PROFILES = st.builds(
    Profile,
    worker_identity=TEXTS,
    task_queue=TEXTS,
    build_id=TEXTS,
    sdk_name=TEXTS,
    sdk_version=TEXTS,
    host_name=TEXTS,
    process_id=TEXTS,
    start_time_ns=st.none() | st.integers(-(2**63), 2**63 - 1),
    labels=st.lists(st.tuples(TEXTS, TEXTS), max_size=3).map(tuple),
    capabilities=st.lists(TEXTS, max_size=3).map(tuple),
    current_job=TEXTS,
)
HELD = BoundActivity("flow", "run", "activity", 1, "queue")
COUNTS = st.integers(0, 2**63 - 1)
FIELDS = st.fixed_dictionaries(
    {
        "number": COUNTS,
        "state": st.sampled_from(WorkerState),
        "session_id": TEXTS,
        "sequence": COUNTS,
        "epoch": st.integers(1, 3),
        "granted_ms": st.integers(1_000, 1_002),
        "renewed_ms": COUNTS,
        "deadline_ms": COUNTS,
        "bindings": st.sampled_from([NO_BINDINGS, {HELD.id: HELD}]),
        "lost": st.sampled_from([NO_BINDINGS, {HELD.id: HELD}]),
        "superseded": st.sampled_from([(), ("older",)]),
        "profile": st.just(NO_PROFILE) | PROFILES,
        "status": st.sampled_from(WorkerStatus),
        "last_error": st.sampled_from(["", "broken"]),
        "successes": COUNTS,
        "errors": COUNTS,
        "resync": st.booleans(),
        "inactive_reason": st.none() | st.sampled_from(InactiveReason),
        "inactive_detail": st.sampled_from(["", "why"]),
        "standing": st.sampled_from([NO_STANDING, Standing(paused=True)]),
        "wall_offset_ms": st.none() | COUNTS,
        "principal": st.sampled_from(["", "team"]),
        "heartbeats": COUNTS,
    }
).map(
    lambda fields: (
        fields | {"deadline_ms": fields["renewed_ms"] + fields["granted_ms"]}
        if fields["state"] is WorkerState.ACTIVE
        else fields
    )
)


def shown(worker: Worker) -> dict[str, Any]:
    return {name: getattr(worker, name) for name in WORKER_FIELDS}


@given(FIELDS)
def test_a_worker_shows_the_fields_that_it_was_made_of(fields: dict[str, Any]) -> None:
    assert shown(Worker(**fields)) == fields


@given(FIELDS, FIELDS)
def test_workers_are_equal_exactly_when_their_fields_are(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert (Worker(**one) == Worker(**other)) == (one == other)


@given(FIELDS, FIELDS, st.sets(st.sampled_from(WORKER_FIELDS)))
def test_replaced_fields_are_shown_and_the_others_stay(
    one: dict[str, Any], other: dict[str, Any], names: set[str]
) -> None:
    changes = {name: other[name] for name in names}
    expected = one | changes
    after = Worker(**one)._replace(**changes)
    if expected["state"] is WorkerState.ACTIVE or (
        one["state"] is WorkerState.ACTIVE and "deadline_ms" not in names
    ):
        expected["deadline_ms"] = after.renewed_ms + after.granted_ms
    assert shown(after) == expected
    assert after == Worker(**expected)
    assert type(after) is Worker


@given(PROFILES, TEXTS)
def test_packed_texts_stay_distinct(profile: Profile, text: str) -> None:
    worker = Worker(**PLAIN)._replace(session_id=text, profile=profile)
    assert (worker.session_id, worker.profile) == (text, profile)
    moved = profile._replace(worker_identity=profile.worker_identity + "1", process_id="")
    other = profile._replace(process_id="1" + profile.process_id)
    assert worker._replace(profile=moved) != worker._replace(profile=other) or moved == other


PLAIN: dict[str, Any] = {
    "number": 1, "state": WorkerState.ACTIVE, "session_id": "a", "sequence": 1, "epoch": 1, "granted_ms": 1_000, "renewed_ms": 5,
    "deadline_ms": 1_005, "bindings": NO_BINDINGS, "lost": NO_BINDINGS, "superseded": (), "profile": NO_PROFILE,
    "status": WorkerStatus.RUNNING, "last_error": "", "successes": 0, "errors": 0, "resync": False, "inactive_reason": None,
    "inactive_detail": "",
}  # fmt: skip


def test_workers_with_the_same_state_share_one_copy_of_it() -> None:
    profile = Profile(worker_identity="one", task_queue="orders", host_name="host")
    one = Worker(**PLAIN | {"profile": profile})
    other = Worker(
        **PLAIN | {"number": 2, "session_id": "b", "profile": profile._replace(worker_identity="other")}
    )
    assert one.shared is other.shared
    assert one._replace(resync=True).shared is other._replace(resync=True).shared


def test_an_ended_lease_keeps_the_state_shared() -> None:
    one, other = (
        Worker(**PLAIN)._replace(state=WorkerState.INACTIVE, deadline_ms=deadline_ms)
        for deadline_ms in (10, 20)
    )
    assert one.shared is other.shared
    assert (one.deadline_ms, other.deadline_ms) == (10, 20)
