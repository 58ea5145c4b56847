"""Every version decodes the rows of earlier versions and folds them to the same state.

The files in `golden` are frozen; see the README beside them. Their decoded values are in `golden_v1` to
`golden_v13`.
"""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from liveness.domain import activity as activities
from liveness.domain.activity import Activity
from liveness.domain.concurrency import ConcurrencyLimit
from liveness.domain.concurrency import evolve as evolve_limit
from liveness.domain.events import (
    ConcurrencyLimitEvent,
    ProgressForgotten,
    ProgressReported,
    ScheduleEvent,
    WorkerCleanedUp,
    WorkerDeactivated,
    WorkerForgotten,
)
from liveness.domain.fold import evolve
from liveness.domain.keys import ActivityId
from liveness.domain.progress import UnitProgress
from liveness.domain.progress import evolve as evolve_progress
from liveness.domain.schedule import Schedule
from liveness.domain.schedule import evolve as evolve_schedule
from liveness.domain.worker import InactiveReason, Worker
from liveness.store import codec
from liveness.store.codec import RenewalBatch, decode_entry, encode_entry
from tests.unit.store.golden_files import SHARD, VERSIONS, Version

NEWEST = VERSIONS[-1]

every_version = pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)


# -- reading


@every_version
def test_golden_rows_decode_to_their_recorded_values(version: Version) -> None:
    rows = zip(version.rows(), version.meaning, strict=True)
    for number, (row, entry) in enumerate(rows, start=1):
        assert decode_entry(row) == entry, f"{version.name} row {number}"


@every_version
def test_every_golden_row_has_a_recorded_value(version: Version) -> None:
    assert len(version.rows()) == len(version.meaning)


@every_version
def test_folding_the_golden_log_gives_the_same_workers(version: Version) -> None:
    workers: dict[str, Worker | None] = {}
    numbers: dict[int, str] = {}
    for entry in map(decode_entry, version.rows()):
        if isinstance(entry.event, RenewalBatch):
            for number, renewal in zip(entry.event.worker_numbers, entry.event.renewals, strict=True):
                wall_ms = entry.wall_ms - entry.observed_ms + renewal.at_ms
                workers[numbers[number]] = evolve(workers[numbers[number]], renewal, entry.seq, wall_ms)
        elif entry.worker is not None:
            after = evolve(workers.get(entry.worker), entry.event, entry.seq, entry.wall_ms)  # type: ignore[arg-type]
            workers[entry.worker] = after
            if after is not None:
                numbers[after.number] = entry.worker
    assert workers == version.workers


def test_folding_the_golden_log_gives_the_same_progress() -> None:
    known: dict[str, UnitProgress | None] = {}
    seen: list[UnitProgress | None] = []
    for entry in map(decode_entry, NEWEST.rows()):
        if isinstance(entry.event, ProgressReported | ProgressForgotten):
            known[entry.event.unit] = evolve_progress(known.get(entry.event.unit), entry.event, entry.wall_ms)
            seen.append(known[entry.event.unit])
    before, last = seen[1:-1], seen[-1]
    assert before == [NEWEST.stored_progress["progress"], None]
    assert last is not None
    assert (last.errors, last.failing, last.report_ids) == (3, True, ("bericht-2",))


def test_folding_the_golden_log_gives_the_same_schedules() -> None:
    known: Schedule | None = None
    seen: list[Schedule | None] = []
    for entry in map(decode_entry, NEWEST.rows()):
        if isinstance(entry.event, ScheduleEvent):
            known = evolve_schedule(known, entry.event, entry.wall_ms)
            seen.append(known)
    assert seen[0] == NEWEST.stored_schedules["new schedule"]
    assert seen[-3] == NEWEST.stored_schedules["schedule"]
    resumed, last = seen[-2:]
    assert resumed is not None
    assert (resumed.paused, resumed.pause_reason, resumed.due_ms) == (False, "", 0)
    assert last is None


def test_folding_the_golden_log_gives_the_same_concurrency_limits() -> None:
    known: ConcurrencyLimit | None = None
    seen: list[ConcurrencyLimit | None] = []
    for entry in map(decode_entry, NEWEST.rows()):
        if isinstance(entry.event, ConcurrencyLimitEvent):
            known = evolve_limit(known, entry.event, entry.wall_ms)
            seen.append(known)
    assert seen[1:] == [NEWEST.stored_limits["concurrency limit"], None]


@every_version
def test_folding_the_golden_log_gives_the_same_activities(version: Version) -> None:
    known: dict[ActivityId, Activity] = {}
    for entry in map(decode_entry, version.rows()):
        if entry.workflow_id is not None:
            event = entry.event
            id = ActivityId(entry.workflow_id, event.run_id, event.activity_id)  # type: ignore[union-attr]
            known[id] = activities.evolve(known.get(id), event, entry.workflow_id, entry.wall_ms)  # type: ignore[arg-type]
    assert known == version.activities


@every_version
def test_golden_projections_decode_to_their_recorded_values(version: Version) -> None:
    forms = version.forms()
    for name, worker in version.stored_workers.items():
        assert worker is not None
        assert codec.decode_worker(worker.number, int(worker.state), forms.pop(name)) == worker
    for name, activity in version.stored_activities.items():
        columns = (activity.id, int(activity.state), activity.task_queue, activity.worker)
        assert codec.decode_activity(*columns, forms.pop(name)) == activity
    for name, progress in version.stored_progress.items():
        assert codec.decode_progress(progress.failing, forms.pop(name)) == progress
    for name, schedule in version.stored_schedules.items():
        assert codec.decode_schedule(forms.pop(name)) == schedule
    for name, limit in version.stored_limits.items():
        assert codec.decode_limit(forms.pop(name)) == limit
    assert codec.decode_bound_activity(forms.pop("bound_activity")) == version.stored_binding
    assert codec.decode_renewal_states(forms.pop("pulses")) == version.renewal_states
    assert codec.decode_settings(forms.pop("settings")) == version.settings
    assert codec.decode_takeovers(forms.pop("take_overs")) == version.take_overs
    if version.deaths:
        assert codec.decode_deaths(forms.pop("deaths")) == version.deaths
    assert forms == {}, "every stored form has a recorded value"


# -- writing in the newest version


def test_every_kind_of_event_has_a_golden_row() -> None:
    assert {row.kind for row in NEWEST.rows()} == set(codec.EVENT_KINDS)


def test_every_field_with_a_default_differs_from_it_in_some_golden_row() -> None:
    """Otherwise the golden rows would not show how the field is stored."""
    shown: dict[tuple[str, str], bool] = {}
    for entry in NEWEST.meaning:
        if dataclasses.is_dataclass(entry.event):
            for field in dataclasses.fields(entry.event):
                if field.default is not dataclasses.MISSING:
                    at = type(entry.event).__name__, field.name
                    shown[at] = shown.get(at, False) or getattr(entry.event, field.name) != field.default
    assert [at for at, is_shown in shown.items() if not is_shown] == []


def test_this_version_still_writes_golden_rows() -> None:
    """The previous version must read the rows of this one until a new payload version says otherwise."""
    for number, (row, entry) in enumerate(zip(NEWEST.rows(), NEWEST.meaning, strict=True), start=1):
        assert encode_entry(SHARD, entry) == row, f"{NEWEST.name} row {number}"


def test_a_version_without_certificates_still_reads_deaths() -> None:
    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class Deactivated:
        """The event before certificates existed."""

        reason: InactiveReason
        detail: str
        at_ms: int
        cleanup_delay_ms: int

    with_certificates = VERSIONS[3]
    deaths = [row for row in with_certificates.rows() if row.kind == WorkerDeactivated.__name__]
    known = [entry.event for entry in VERSIONS[1].meaning if isinstance(entry.event, WorkerDeactivated)]
    assert any("certificate" in row.payload for row in deaths)
    assert [msgspec.json.decode(row.payload, type=Deactivated) for row in deaths] == [
        Deactivated(
            reason=event.reason,
            detail=event.detail,
            at_ms=event.at_ms,
            cleanup_delay_ms=event.cleanup_delay_ms,
        )
        for event in known
    ]
    assert {row.version for row in NEWEST.rows()} == {1}


def test_a_version_without_incarnations_still_reads_tombstones_and_forgotten_workers() -> None:
    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class CleanedUp:
        """The event before tombstones remembered sessions."""

        at_ms: int
        tombstone_retention_ms: int

    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class Forgotten:
        """The event before there was a floor."""

    for row in NEWEST.rows():
        if row.kind == WorkerCleanedUp.__name__:
            assert "keeps_sessions" in row.payload
            assert msgspec.json.decode(row.payload, type=CleanedUp).tombstone_retention_ms > 0
        elif row.kind == WorkerForgotten.__name__:
            assert "epoch_floor" in row.payload
            assert msgspec.json.decode(row.payload, type=Forgotten) == Forgotten()


def test_this_version_still_writes_golden_projections() -> None:
    assert NEWEST.forms() == written_forms(NEWEST)


def written_forms(version: Version) -> dict[str, str]:
    return {
        **{name: codec.encode_worker(worker) for name, worker in version.stored_workers.items() if worker},
        **{name: codec.encode_activity(activity) for name, activity in version.stored_activities.items()},
        **{name: codec.encode_progress(progress) for name, progress in version.stored_progress.items()},
        **{name: codec.encode_schedule(schedule) for name, schedule in version.stored_schedules.items()},
        **{name: codec.encode_limit(limit) for name, limit in version.stored_limits.items()},
        "bound_activity": codec.encode_bound_activity(version.stored_binding),
        "pulses": codec.encode_renewal_states(version.renewal_states),
        "settings": codec.encode_settings(version.settings),
        "take_overs": codec.encode_takeovers(version.take_overs),
        "deaths": codec.encode_deaths(version.deaths),
    }


@pytest.mark.parametrize("name", ["worker", "tombstone"])
def test_projections_of_version_1_are_still_written_unchanged(name: str) -> None:
    """A worker without newer features stores no newer fields."""
    worker = VERSIONS[0].stored_workers[name]
    assert worker is not None
    assert codec.encode_worker(worker) == VERSIONS[0].forms()[name]
