"""Workers as rows of a table: their cells, their order, and the columns that fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from rich.text import Text

from liveness.cli.durations import humanize_ms, to_ms
from liveness.cli.errors import escape_control
from liveness.cli.fleet.view_state import Sort
from liveness.cli.output import enum_name
from liveness.v1.worker_pb2 import (
    WORKER_STATE_ACTIVE,
    WORKER_STATE_INACTIVE,
    InactiveReason,
    Worker,
    WorkerState,
)

DEACTIVATION_TEXT: dict[int, str] = {
    InactiveReason.INACTIVE_REASON_LEASE_EXPIRED: "silent",
    InactiveReason.INACTIVE_REASON_DISCONNECTED: "cut off",
    InactiveReason.INACTIVE_REASON_SHUTDOWN: "said goodbye",
    InactiveReason.INACTIVE_REASON_FORCED: "forced out",
    InactiveReason.INACTIVE_REASON_DRAINED: "drained",
    InactiveReason.INACTIVE_REASON_PROCESS_EXITED: "process ended",
}
SILENT_REASONS = {
    InactiveReason.INACTIVE_REASON_LEASE_EXPIRED,
    InactiveReason.INACTIVE_REASON_DISCONNECTED,
}
"""For these reasons the time since the last heartbeat is shown."""
FULL, EMPTY = "━", "─"
BAR_WIDTH = 10
WIDE_TERMINAL = 96


def state_text(worker: Worker) -> str:
    """The state in a few words: active, suspect, paused+draining, inactive."""
    flags = []
    if worker.state == WORKER_STATE_ACTIVE:
        flags += ["suspect"] if worker.suspect else []
        flags += ["held"] if worker.HasField("held_until") else []
        flags += ["draining"] if worker.draining else []
    else:
        flags.append(enum_name(WorkerState, worker.state).lower().replace("_", " "))
    if worker.paused and worker.state in (WORKER_STATE_ACTIVE, WORKER_STATE_INACTIVE):
        flags.append("paused")
    return "+".join(flags) or "active"


def remaining_lease_ms(worker: Worker, server_ms: int) -> int | None:
    """None for a worker without a lease."""
    if worker.state != WORKER_STATE_ACTIVE or not worker.HasField("lease_deadline"):
        return None
    return max(0, worker.lease_deadline.ToMilliseconds() - server_ms)


def sort_workers(workers: Iterable[Worker], sort: Sort, server_ms: int, *, reverse: bool) -> list[Worker]:
    """Sort the workers. The server lists them by key; the other orders put workers that need attention first."""

    def urgency(worker: Worker) -> tuple[Any, ...]:
        active = worker.state == WORKER_STATE_ACTIVE
        is_plain = active and not (worker.suspect or worker.draining or worker.paused)
        return (not (active and worker.suspect), worker.state != WORKER_STATE_INACTIVE, is_plain)

    def remaining_ms(worker: Worker) -> float:
        left_ms = remaining_lease_ms(worker, server_ms)
        return float("inf") if left_ms is None else left_ms

    orders: dict[Sort, Callable[[Worker], Any]] = {
        Sort.STATE: urgency,
        Sort.LEASE: remaining_ms,
        Sort.ACTIVITIES: lambda worker: -worker.bound_activity_count,
    }
    ordered = list(workers)
    if sort in orders:
        ordered.sort(key=orders[sort])
    if reverse:
        ordered.reverse()
    return ordered


# -- columns


class Column(NamedTuple):
    title: str
    cell: Callable[[Worker, int], Text]
    """Draws the cell of a worker, at a time of the server's clock."""
    width: int | None = None
    """None: a share of the remaining width."""
    sort: Sort | None = None
    width_min: int = 0
    """The column is hidden on terminals narrower than this."""
    width_max: int = 1_000_000
    right: bool = False


def columns(width: int, *, with_namespace: bool) -> list[Column]:
    return [
        column
        for column in COLUMNS
        if column.width_min <= width < column.width_max and (with_namespace or column.title != "namespace")
    ]


def _state_cell(worker: Worker, server_ms: int) -> Text:
    word = state_text(worker)
    style = next((style for flag, style in STYLES if flag in word), "")
    return Text(word, style)


STYLES = (
    ("suspect", "bold yellow"),
    ("inactive", "red"),
    ("cleaned up", "dim"),
    ("draining", "magenta"),
    ("paused", "magenta"),
    ("active", "green"),
)


def _lease_cell(worker: Worker, server_ms: int) -> Text:
    left_ms = remaining_lease_ms(worker, server_ms)
    if left_ms is None:
        return Text(_deactivation_text(worker, server_ms), "dim")
    remaining_share = left_ms / (to_ms(worker.granted_lease_duration) or 1)
    filled = min(max(round(remaining_share * BAR_WIDTH), 0), BAR_WIDTH)
    style = "green" if remaining_share > 0.5 else "yellow" if remaining_share > 0.2 else "red"
    return Text.assemble(
        (FULL * filled, style), (EMPTY * (BAR_WIDTH - filled), "dim"), f" {_format_remaining(left_ms):>7}"
    )


def _format_remaining(ms: int) -> str:
    """Tenths of a second below a minute, whole minutes above."""
    return f"{ms / 1_000:.1f} s" if ms < 60_000 else humanize_ms(ms // 60_000 * 60_000)


def _deactivation_text(worker: Worker, server_ms: int) -> str:
    why = DEACTIVATION_TEXT.get(worker.inactive_reason, "")
    if worker.inactive_reason not in SILENT_REASONS or not worker.HasField("last_heartbeat_time"):
        return why
    return f"{why} {_format_remaining(max(0, server_ms - worker.last_heartbeat_time.ToMilliseconds()))}"


def _activity_count_cell(worker: Worker, server_ms: int) -> Text:
    return Text(f"{worker.bound_activity_count:,}" if worker.bound_activity_count else "")


def _loop_lag_cell(worker: Worker, server_ms: int) -> Text:
    return Text(humanize_ms(to_ms(worker.loop_lag)) if worker.HasField("loop_lag") else "", "yellow")


def _stream_cell(worker: Worker, server_ms: int) -> Text:
    return Text("attached" if worker.attached else "broken" if worker.suspect else "")


def _field_cell(field: str, style: str = "") -> Callable[[Worker, int], Text]:
    return lambda worker, server_ms: Text(escape_control(getattr(worker, field)), style)


COLUMNS = (
    Column("namespace", _field_cell("namespace", "blue"), width_min=60),
    Column("worker", _field_cell("worker_instance_key"), sort=Sort.KEY),
    Column("state", _state_cell, 10, Sort.STATE, width_max=WIDE_TERMINAL),
    Column("state", _state_cell, len("suspect+draining"), Sort.STATE, width_min=WIDE_TERMINAL),
    Column("lease", _lease_cell, BAR_WIDTH + 8, Sort.LEASE, width_min=45),
    Column("act", _activity_count_cell, 5, Sort.ACTIVITIES, right=True),
    Column("build", _field_cell("build_id"), width_min=72),
    Column("host", _field_cell("host_name"), width_min=78),
    Column("task queue", _field_cell("task_queue"), width_min=110),
    Column("stream", _stream_cell, 8, width_min=120),
    Column("loop lag", _loop_lag_cell, 8, width_min=130, right=True),
    Column("job", _field_cell("current_job", "dim"), width_min=150),
)
