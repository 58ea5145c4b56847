"""The fleet view shows the state of the fleet at any terminal size and escapes client-supplied text."""

from __future__ import annotations

from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from liveness.cli.fleet.reader import WORKERS_MAX
from liveness.cli.fleet.stats import stats
from liveness.cli.fleet.view import FleetView
from liveness.cli.fleet.view_state import Sort, Viewport, ViewState
from liveness.v1.fleet_pb2 import (
    ALERT_KIND_NO_ACTIVE_WORKERS,
    ALERT_KIND_STORM,
    ALERT_KIND_UNPOLLED_QUEUE,
    Alert,
    AlertKind,
    FleetSample,
    NamespaceFleet,
)
from liveness.v1.worker_pb2 import (
    INACTIVE_REASON_LEASE_EXPIRED,
    INACTIVE_REASON_SHUTDOWN,
    WORKER_STATE_CLEANED_UP,
    WORKER_STATE_INACTIVE,
    Worker,
)
from tests.unit.cli.fleet.fleet_views import fleet, frame, rendered_lines, worker

HOSTILE = "x\x1b[31m\u202e\n[red]y[/red]"
SHOWN = r"x\x1b[31m\u202e\n[red]y[/red]"


def dead(key: str, **fields: object) -> Worker:
    return worker(
        key,
        left_s=None,
        state=WORKER_STATE_INACTIVE,
        inactive_reason=INACTIVE_REASON_LEASE_EXPIRED,
        **fields,
    )


def row(lines: list[str], key: str) -> str:
    (found,) = (line for line in lines if line.startswith(key))
    return found


def order(view_state: ViewState, *workers: Worker) -> list[str]:
    return [found.worker_instance_key for found in frame(*workers, view_state=view_state).workers()]


def test_the_header_counts_workers_by_state() -> None:
    counted = [
        NamespaceFleet(namespace="a", active=1_000, suspects=2, deaths=9, false_deaths=1),
        NamespaceFleet(namespace="b", active=234, inactive=3, cleaned_up=4),
    ]
    head = rendered_lines(frame(fleet=fleet(namespaces=counted), namespace=""))
    assert head[0].startswith("liveness top  all namespaces  127.0.0.1:7400  4 of 4 shards served")
    assert head[1].startswith("1,234 active  2 suspect  3 inactive  4 cleaned up  1 of 9 deaths were false")


def test_rates_cover_the_last_seconds_and_counts_the_last_minute() -> None:
    quiet = [FleetSample(active=5, expiries=100)] * 31
    busy = [FleetSample(active=7, heartbeats=40, latency_p50_ms=1.25, latency_p99_ms=12.6, expiries=1, reschedules=2, queue_depth=3)] * 5  # fmt: skip
    samples = [FleetSample.FromString(sample.SerializeToString()) for sample in quiet + busy]
    shown = "\n".join(rendered_lines(frame(fleet=fleet(samples))))
    assert "heartbeats  20/s" in shown
    assert "p50, p99    1.2, 13 ms" in shown
    assert "active      7 " in shown
    assert "expiries    2,505/min" in shown
    assert "reschedules 10/min" in shown
    assert "waiting     0, 3 tasks " in shown


def test_without_samples_the_figures_are_empty() -> None:
    shown = "\n".join(rendered_lines(frame()))
    assert "heartbeats  0.0/s" in shown
    assert "p50, p99    –" in shown


def test_the_remaining_lease_decreases_between_two_snapshots() -> None:
    assert "━━━━━━━───  20.0 s" in row(rendered_lines(frame(worker("w"))), "w ")
    assert "━━────────   5.0 s" in row(rendered_lines(frame(worker("w"), later_ms=15_000)), "w ")
    assert "──────────   0.0 s" in row(rendered_lines(frame(worker("w"), later_ms=25_000)), "w ")


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (worker("w"), ["active"]),
        (worker("w", suspect=True), ["suspect"]),
        (worker("w", paused=True), ["paused"]),
        (worker("w", draining=True), ["draining"]),
        (dead("w"), ["inactive", "silent 10.0 s"]),
        (worker("w", left_s=None, state=WORKER_STATE_INACTIVE, inactive_reason=INACTIVE_REASON_SHUTDOWN), ["inactive", "said goodbye"]),
        (worker("w", left_s=None, state=WORKER_STATE_CLEANED_UP, paused=True), ["cleaned up"]),
        (worker("w", bound_activity_count=12, build_id="b-7", host_name="db-3"), ["12", "b-7", "db-3"]),
    ],
)  # fmt: skip
def test_a_row_shows_the_state_of_its_worker(seen: Worker, words: list[str]) -> None:
    shown = row(rendered_lines(frame(seen)), "w ")
    assert all(word in shown for word in words)


def test_several_marks_of_a_worker_are_combined() -> None:
    both = worker("w", suspect=True, draining=True)
    assert "suspect+draining" in row(rendered_lines(frame(both), width=100), "w ")
    assert "suspect+d…" in row(rendered_lines(frame(both), width=80), "w ")


def test_workers_that_need_attention_come_first() -> None:
    fine, suspect, gone, paused = worker("fine"), worker("suspect", suspect=True), dead("gone"), worker("paused", paused=True)  # fmt: skip
    assert order(ViewState(sort=Sort.STATE), fine, gone, paused, suspect) == ["suspect", "gone", "paused", "fine"]  # fmt: skip


def test_sorting_by_lease_puts_the_earliest_end_first_and_dead_workers_last() -> None:
    workers = (dead("none"), worker("late", left_s=25), worker("soon", left_s=1))
    assert order(ViewState(sort=Sort.LEASE), *workers) == ["soon", "late", "none"]
    assert order(ViewState(sort=Sort.LEASE, reverse=True), *workers) == ["none", "late", "soon"]


def test_sorting_by_activities_puts_the_busiest_worker_first() -> None:
    workers = (worker("a", bound_activity_count=1), worker("b", bound_activity_count=20), worker("c"))
    assert order(ViewState(sort=Sort.ACTIVITIES), *workers) == ["b", "a", "c"]


def test_the_heading_marks_the_sort_column() -> None:
    (heading,) = (
        line for line in rendered_lines(frame(view_state=ViewState(sort=Sort.LEASE))) if "worker" in line
    )
    assert "lease▼" in heading
    assert "worker▼" not in heading


def test_the_first_alerts_are_banners_and_the_rest_is_counted() -> None:
    storm = Alert(kind=ALERT_KIND_STORM, message="14 workers of orders died within 60 s.")
    others = [Alert(kind=kind, message="look") for kind in AlertKind.values() if kind > ALERT_KIND_STORM]
    lines = rendered_lines(frame(fleet=fleet(alerts=[storm, *others])))
    assert " STORM: 14 workers of orders died within 60 s." in lines
    assert f" DEAD LETTERS: look  (and {len(others) - 2} more)" in lines


def test_alerts_of_one_kind_share_a_banner() -> None:
    dead = [
        Alert(kind=ALERT_KIND_NO_ACTIVE_WORKERS, namespace=name, message=f"4 workers of {name} died.")
        for name in ("a", "b", "c\x1b")
    ]
    unpolled = Alert(kind=ALERT_KIND_UNPOLLED_QUEUE, namespace="a", message="341 activities of a wait.")
    shown = frame(fleet=fleet(alerts=[*dead, unpolled]))
    lines = rendered_lines(shown)
    assert any(
        line.startswith(" NO ACTIVE WORKERS (3): 4 workers of a died. Also in: b, c") for line in lines
    )
    assert " UNPOLLED QUEUE: 341 activities of a wait." in lines
    assert len(FleetView(shown).banners()) == 4, "a pipe gets them all"


def test_a_zero_where_workers_died_is_red() -> None:
    def style(**counts: Any) -> str:
        namespaces = [NamespaceFleet(namespace="orders", **counts)]
        view = FleetView(frame(fleet=fleet(namespaces=namespaces)))
        head = view.head(120, Viewport(0, 0))[1]
        assert head.plain.startswith("0 active")
        return str(head.get_style_at_offset(Console(), 0))

    assert style(dead=4, inactive=4) == "bold red"
    assert style(inactive=4) == "dim"


def test_activities_that_nobody_polls_for_are_marked() -> None:
    sample = FleetSample(available_activities=341, queue_depth=2)
    quiet = NamespaceFleet(namespace="orders", active=1, available_activities=341)
    unpolled = NamespaceFleet(namespace="orders", active=1, available_activities=341, unpolled_activities=341)
    for namespace, alarming in ((quiet, False), (unpolled, True)):
        [stat] = [stat for stat in stats(fleet([sample], namespaces=[namespace])) if stat.name == "waiting"]
        assert (stat.value_text, stat.is_alarming) == ("341, 2 tasks", alarming)


def test_a_stale_view_is_marked() -> None:
    assert not any("STALE" in line for line in rendered_lines(frame(later_ms=9_000)))
    assert " STALE for 12 s: 127.0.0.1:7400 has not answered" in rendered_lines(frame(later_ms=12_000))
    assert " STALE for 3 s: no server" in rendered_lines(frame(later_ms=3_000, error="no server"))


def test_the_header_shows_the_visible_range() -> None:
    workers = [worker(f"w{n:04}") for n in range(200)]
    assert rendered_lines(frame(*workers))[1].endswith("1–17 of 200")
    assert rendered_lines(frame(*workers, view_state=ViewState(first=50)))[1].endswith("51–67 of 200")
    assert rendered_lines(frame(*workers, total=12_300))[1].endswith("1–17 of the first 5,000 of 12,300")
    sorted_ = ViewState(sort=Sort.LEASE)
    assert rendered_lines(frame(*workers, total=12_300, view_state=sorted_))[1].endswith(
        "1–17 of 200 sorted, of 12,300"
    )
    assert rendered_lines(frame(*workers, total=None))[1].endswith("1–17 of the first 200 of more")
    assert rendered_lines(frame(view_state=ViewState(filter="x")))[1].endswith("none found")


def test_scrolling_stops_at_the_last_row() -> None:
    shown = frame(*(worker(f"w{n:04}") for n in range(100)), view_state=ViewState(first=99_999))
    assert "w0099" in "\n".join(rendered_lines(shown))
    assert FleetView(shown).viewport(80, 24).first_row_max == 100 - 17


def test_scrolling_reaches_only_the_loaded_workers() -> None:
    assert FleetView(frame(total=WORKERS_MAX + 7)).viewport(80, 24).row_count == WORKERS_MAX


@pytest.mark.parametrize("width", [20, 45, 80, 100, 160, 300])
@pytest.mark.parametrize("height", [5, 10, 16, 24, 50])
@pytest.mark.parametrize(
    "view_state",
    [ViewState(), ViewState(help=True), ViewState(filter_input="host="), ViewState(filter="x", paused=True)],
)
def test_the_view_fits_any_terminal_size(width: int, height: int, view_state: ViewState) -> None:
    alerts = [Alert(kind=ALERT_KIND_STORM, message="m" * 500)] * 7
    workers = [worker("k" * 300, namespace="n" * 99, host_name="漢字" * 50) for _ in range(100)]
    for namespace in ("", "orders"):
        shown = frame(*workers, fleet=fleet(alerts=alerts), view_state=view_state, namespace=namespace)
        lines = rendered_lines(shown, width, height)
        assert len(lines) == height
        assert all(cell_len(line) <= width for line in lines)


@pytest.mark.parametrize("height", [8, 24])
def test_the_last_line_shows_the_keys(height: int) -> None:
    assert rendered_lines(frame(worker("w")), height=height)[-1].startswith("q quit")
    assert "q quit" not in "\n".join(rendered_lines(frame(worker("w")), height=height, keys=False))


def test_the_filter_input_shows_its_errors() -> None:
    assert rendered_lines(frame(view_state=ViewState(filter_input="host=a")))[-1].startswith(
        "/host=a▏   Enter applies the filter"
    )
    assert "color= is not a filter" in rendered_lines(frame(view_state=ViewState(filter_input="color=")))[-1]


def test_hostile_text_is_escaped_everywhere() -> None:
    hostile = worker(HOSTILE, host_name=HOSTILE, build_id=HOSTILE, namespace=HOSTILE, current_job=HOSTILE)
    shown = frame(
        hostile,
        fleet=fleet(alerts=[Alert(message=HOSTILE)]),
        namespace="",
        error=HOSTILE,
        view_state=ViewState(filter=HOSTILE),
    )
    lines = rendered_lines(shown, width=400, height=20)
    assert all(line.isprintable() for line in lines)
    assert sum(line.count(SHOWN) for line in lines) >= 7
