"""Every stored value is decoded to an equal value of the same type."""

import dataclasses
import json
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

import msgspec
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from liveness.domain.activity import Activity
from liveness.domain.death_certificate import ConcurrentDeaths, DeathEvidence, Stall, issue_certificate
from liveness.domain.events import Event, LeaseRenewed, WorkerDeactivated
from liveness.domain.keys import IDENTIFIER_BYTES_MAX
from liveness.domain.progress import UnitProgress
from liveness.domain.schedule import Schedule
from liveness.domain.worker import (
    NO_PROFILE,
    NO_STANDING,
    BoundActivity,
    InactiveReason,
    Worker,
    WorkerState,
)
from liveness.store import codec
from liveness.store.codec import LogEntry, RenewalBatch, RenewalState
from liveness.store.errors import CorruptRow
from tests.unit.domain import strategies
from tests.unit.store.samples import WORKER

maybe_text = st.none() | strategies.text


def types_within(value: Any) -> Any:
    """Return the types within a value, because 1 == 1.0 == True would hide a change."""
    if isinstance(value, tuple | list):
        return type(value), [types_within(part) for part in value]
    if isinstance(value, dict):
        return type(value), [(types_within(name), types_within(part)) for name, part in value.items()]
    if hasattr(value, "__dataclass_fields__"):
        return type(value), [types_within(getattr(value, name)) for name in value.__dataclass_fields__]
    return type(value)


@pytest.mark.parametrize("kind", strategies.event_kinds, ids=lambda kind: kind.__name__)
def test_an_event_of_each_kind_round_trips_and_its_json_names_every_field(kind: type) -> None:
    @settings(max_examples=50)
    @given(
        event=strategies.event_kinds[kind],
        shard_id=st.integers(0, 2**31 - 1),
        seq=strategies.counts,
        namespace=maybe_text,
        worker=maybe_text,
        workflow_id=maybe_text,
        wall_ms=strategies.times,
        observed_ms=strategies.times,
    )
    def round_trips(event: Event, shard_id: int, **index: Any) -> None:
        entry = LogEntry(event=event, **index)
        decoded = codec.decode_entry(codec.encode_entry(shard_id, entry))
        assert decoded == entry
        assert types_within(decoded) == types_within(entry)
        assert set(json.loads(codec.event_to_json(event))) == set(event.__dataclass_fields__)  # type: ignore[union-attr]

    round_trips()


@pytest.mark.parametrize("kind", strategies.event_kinds, ids=lambda kind: kind.__name__)
def test_the_strategies_vary_every_field_with_a_default(kind: type) -> None:
    """Otherwise a field that is not stored would still equal its default when decoded."""
    for field in dataclasses.fields(kind):
        if field.default is not dataclasses.MISSING:
            find(
                strategies.event_kinds[kind],
                lambda event, field=field: getattr(event, field.name) != field.default,  # type: ignore[misc]
                settings=settings(phases=[Phase.generate]),
            )


def test_every_kind_of_event_has_a_strategy() -> None:
    stored = {kind for kind in get_args(Event) if kind is not LeaseRenewed}
    assert set(strategies.event_kinds) == stored
    assert set(codec.EVENT_KINDS) == {"LeasesRenewed"} | {kind.__name__ for kind in stored}


@given(rows=st.lists(st.tuples(strategies.counts, strategies.renewed), min_size=1, max_size=50))
def test_packed_renewals_round_trip_in_order(rows: list[tuple[int, LeaseRenewed]]) -> None:
    packed = RenewalBatch([number for number, _ in rows], [renewal for _, renewal in rows])
    entry = LogEntry(1, None, None, None, 0, 0, packed)
    assert codec.decode_entry(codec.encode_entry(0, entry)).event == packed


@given(strategies.workers)
def test_a_worker_round_trips_and_is_immutable(worker: Worker) -> None:
    decoded = codec.decode_worker(worker.number, int(worker.state), codec.encode_worker(worker))
    assert decoded == worker
    assert types_within(plain(decoded)) == types_within(plain(worker))
    for one, other in ((decoded.bindings, worker.bindings), (decoded.lost, worker.lost)):
        assert list(one.items()) == list(other.items())
    assert list(decoded.standing.handed.items()) == list(worker.standing.handed.items())
    assert isinstance(decoded.state, WorkerState)
    for view in (decoded.bindings, decoded.lost, decoded.standing.handed):
        assert isinstance(view, MappingProxyType)


def plain(worker: Worker) -> Worker:
    """Replace read-only views by dictionaries."""
    return worker._replace(
        bindings=dict(worker.bindings),
        lost=dict(worker.lost),
        standing=worker.standing._replace(handed=dict(worker.standing.handed)),
    )


def test_a_worker_without_orders_stores_no_standing() -> None:
    stored = codec.encode_worker(WORKER)
    assert "standing" not in json.loads(stored), "an empty standing is not stored"
    assert codec.decode_worker(1, 1, stored).standing is NO_STANDING


@given(strategies.activities)
def test_an_activity_round_trips(activity: Activity) -> None:
    stored = codec.encode_activity(activity)
    decoded = codec.decode_activity(
        activity.id, int(activity.state), activity.task_queue, activity.worker, stored
    )
    assert decoded == activity
    assert types_within(decoded) == types_within(activity)


@given(strategies.bound_activities)
def test_a_bound_activity_round_trips(activity: BoundActivity) -> None:
    decoded = codec.decode_bound_activity(codec.encode_bound_activity(activity))
    assert decoded == activity
    assert types_within(decoded) == types_within(activity)


renewal_states = st.builds(
    RenewalState,
    strategies.counts,
    strategies.numbers,
    strategies.times,
    strategies.numbers,
    strategies.numbers,
    st.booleans(),
    st.sampled_from([None, 0, 1_790_000_000_000, 1_790_000_000_001]),
    strategies.numbers,
)


@given(st.lists(renewal_states, max_size=10))
def test_renewal_states_of_a_checkpoint_round_trip(given_states: list[RenewalState]) -> None:
    decoded = sorted(codec.decode_renewal_states(codec.encode_renewal_states(given_states)), key=repr)
    given_states = sorted(given_states, key=repr)
    assert decoded == given_states
    assert types_within(decoded) == types_within(given_states)


def test_version_0_1_0_reads_a_checkpoint_with_wall_times() -> None:
    """It decodes tuples of exactly these fields, and skips states whose number is of no worker."""

    class State(NamedTuple):
        number: int
        sequence: int
        renewed_ms: int
        successes: int
        errors: int
        resync: bool

    states = [RenewalState(n, 1, n * 100, 7, 0, False, 1_790_000_000_000 + n % 2) for n in range(1, 5)]
    read = msgspec.json.decode(codec.encode_renewal_states(states), type=list[State])
    known = {state.number: state for state in read if state.number in range(1, 5)}
    assert known == {state.number: State(*state[:6]) for state in states}
    assert len(read) == len(states) + 3, (
        "states share entries for their offset and for the counts of heartbeats"
    )


def test_the_version_before_heartbeats_were_counted_reads_a_checkpoint_with_counts() -> None:
    """It takes number 0 for an offset, and skips other numbers of no worker."""
    states = [RenewalState(n, 1, n * 100, 7, 0, False, 1_790_000_000_000, n * 1_000) for n in range(1, 7)]
    read = msgspec.json.decode(codec.encode_renewal_states(states), type=list[RenewalState])
    assert [state.number for state in read] == [0, 1, 2, 3, 4, -1, 5, 6, -1]
    assert codec.decode_renewal_states(codec.encode_renewal_states(states)) == states


@given(strategies.units)
def test_progress_round_trips(unit: UnitProgress) -> None:
    assert codec.decode_progress(unit.failing, codec.encode_progress(unit)) == unit


@given(strategies.schedules)
def test_schedules_round_trip(schedule: Schedule) -> None:
    assert codec.decode_schedule(codec.encode_schedule(schedule)) == schedule


@given(strategies.settings)
def test_settings_round_trip(overrides: dict[str, float]) -> None:
    assert codec.decode_settings(codec.encode_settings(overrides)) == overrides


@given(st.lists(strategies.numbers, max_size=4).map(tuple))
def test_take_over_times_round_trip(times: tuple[int, ...]) -> None:
    assert codec.decode_takeovers(codec.encode_takeovers(times)) == times


@given(st.text())
def test_unstorable_characters_in_text_are_replaced(text: str) -> None:
    stored = codec.replace_unstorable(text)
    stored.encode()
    assert "\0" not in stored
    assert len(stored) <= len(text)


@given(strategies.text.filter(lambda text: "\0" not in text))
def test_storable_text_is_not_changed(text: str) -> None:
    assert codec.replace_unstorable(text) == text


def test_payloads_are_readable_json() -> None:
    entry = LogEntry(
        7,
        None,
        None,
        None,
        0,
        0,
        RenewalBatch([3, 4], [LeaseRenewed(1, 100, 5, 0), LeaseRenewed(9, 107, 6, 1)]),
    )
    row = codec.encode_entry(0, entry)
    assert json.loads(row.payload) == [[3, 4], [[1, 100, 5, 0], [9, 107, 6, 1]]]


def test_the_largest_certificate_is_still_small() -> None:
    """All workers of a namespace may die at once."""
    name = '"' * IDENTIFIER_BYTES_MAX
    profile = NO_PROFILE._replace(host_name=name, build_id=name, task_queue=name)
    worker = WORKER._replace(session_id=name, epoch=2**63 - 1, granted_ms=2**53, profile=profile)
    far = 2**53
    known = DeathEvidence(
        (far,) * 1_000,
        tuple(Stall(far, far) for _ in range(1_000)),
        ConcurrentDeaths(2**31, 2**31, 2**31),
    )
    certificate = issue_certificate(worker, far, known)
    event = WorkerDeactivated(
        reason=InactiveReason.LEASE_EXPIRED, detail="", at_ms=0, cleanup_delay_ms=0, certificate=certificate
    )
    assert len(codec.encode_entry(0, LogEntry(1, "n", "w", None, 0, 0, event)).payload) < 4_096


def test_an_ordinary_certificate_is_a_few_hundred_bytes() -> None:
    wall_ms = 1_790_000_000_000
    known = DeathEvidence(tuple(wall_ms + n * 10_000 for n in range(6)), (), ConcurrentDeaths(41, 3, 60))
    profile = NO_PROFILE._replace(host_name="db-3", build_id="2026.11", task_queue="payments")
    worker = WORKER._replace(session_id="0123456789abcdef", profile=profile)
    event = WorkerDeactivated(
        reason=InactiveReason.LEASE_EXPIRED,
        detail="no heartbeat for 30000 ms of a 30000 ms lease",
        at_ms=80_000,
        cleanup_delay_ms=3_600_000,
        certificate=issue_certificate(worker, 80_000, known),
    )
    assert len(codec.encode_entry(0, LogEntry(1, "n", "w", None, 0, 0, event)).payload) < 600


def test_the_checksum_format_never_changes() -> None:
    """Rows written by every earlier release and Python version must still verify."""
    sealed = '{"a":1} \r\t \t \n\n\r\t \r\t\r\r\r'
    assert codec.add_checksum('{"a":1}', "orders", "wörker", 7) == sealed
    codec.verify_checksum(sealed, "workers", "orders", "wörker", 7)
    with pytest.raises(CorruptRow, match="orders, wörker, 8 of table workers"):
        codec.verify_checksum(sealed, "workers", "orders", "wörker", 8)


def test_no_flipped_bit_makes_a_row_look_like_one_without_a_checksum() -> None:
    sealed = codec.add_checksum('{"a":1}', "orders", "worker", 7).encode()
    for index in range(len(sealed)):
        for bit in range(8):
            damaged = bytearray(sealed)
            damaged[index] ^= 1 << bit
            with pytest.raises(CorruptRow):
                codec.verify_checksum(damaged.decode("latin-1"), "workers", "orders", "worker", 7)


@given(st.text(), st.text(), st.integers(), st.integers(), st.sampled_from(WorkerState), st.booleans())
def test_a_worker_row_is_verified_as_any_other_row(
    namespace: str, key: str, number: int, as_of_seq: int, state: WorkerState, is_changed: bool
) -> None:
    sealed = codec.add_checksum('{"a":1}', namespace, key, number, as_of_seq, int(state))
    if is_changed:
        with pytest.raises(CorruptRow):
            codec.verify_worker_checksum(sealed, namespace, key + "'", number, as_of_seq, int(state))
    else:
        codec.verify_worker_checksum(sealed, namespace, key, number, as_of_seq, int(state))


def test_a_checksum_writer_gives_the_same_checksums_as_single_rows() -> None:
    common_columns = ("kind", "örders", "worker", 3, 1, 1_750_000_000_000)
    writer = codec.ChecksumWriter(*common_columns)
    for shard_id in (0, 63, 4_095):
        assert writer.add_checksum("[1]", shard_id) == codec.add_checksum("[1]", shard_id, *common_columns)
