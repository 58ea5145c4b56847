"""Workers as rows of the table: what is said of each, in which order they stand, and which columns there is room for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from rich.text import Text

from liveness.cli.durations import in_words, to_ms
from liveness.cli.failure import inert
from liveness.cli.fleet.choices import Sort
from liveness.cli.output import enum_word
from liveness.v1.worker_pb2 import (
    WORKER_STATE_ACTIVE,
    WORKER_STATE_INACTIVE,
    InactiveReason,
    Worker,
    WorkerState,
)

ENDINGS: dict[int, str] = {
    InactiveReason.INACTIVE_REASON_LEASE_EXPIRED: "silent",
    InactiveReason.INACTIVE_REASON_DISCONNECTED: "cut off",
    InactiveReason.INACTIVE_REASON_SHUTDOWN: "said goodbye",
    InactiveReason.INACTIVE_REASON_FORCED: "forced out",
    InactiveReason.INACTIVE_REASON_DRAINED: "drained",
}
UNHEARD = {
    InactiveReason.INACTIVE_REASON_LEASE_EXPIRED,
    InactiveReason.INACTIVE_REASON_DISCONNECTED,
}
"""Of whom it matters since when nothing was heard."""
FULL, EMPTY = "━", "─"
BAR_WIDTH = 10
ROOMY = 96


def standing(worker: Worker) -> str:
    """In one word, or few: active, suspect, paused+draining, inactive."""
    marks = []
    if worker.state == WORKER_STATE_ACTIVE:
        marks += ["suspect"] if worker.suspect else []
        marks += ["held"] if worker.HasField("held_until") else []
        marks += ["draining"] if worker.draining else []
    else:
        marks.append(enum_word(WorkerState, worker.state).lower().replace("_", " "))
    if worker.paused and worker.state in (WORKER_STATE_ACTIVE, WORKER_STATE_INACTIVE):
        marks.append("paused")
    return "+".join(marks) or "active"


def lease_left_ms(worker: Worker, server_ms: int) -> int | None:
    """None for a worker without a lease."""
    if worker.state != WORKER_STATE_ACTIVE or not worker.HasField("lease_deadline"):
        return None
    return max(0, worker.lease_deadline.ToMilliseconds() - server_ms)


def in_order(workers: Iterable[Worker], sort: Sort, server_ms: int, *, reverse: bool) -> list[Worker]:
    """The server lists them by key; whoever needs a look comes first in the other orders."""

    def urgency(worker: Worker) -> tuple[Any, ...]:
        active = worker.state == WORKER_STATE_ACTIVE
        plain = active and not (worker.suspect or worker.draining or worker.paused)
        return (not (active and worker.suspect), worker.state != WORKER_STATE_INACTIVE, plain)

    def ending(worker: Worker) -> float:
        left_ms = lease_left_ms(worker, server_ms)
        return float("inf") if left_ms is None else left_ms

    orders: dict[Sort, Callable[[Worker], Any]] = {
        Sort.STATE: urgency,
        Sort.LEASE: ending,
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
    """Of a worker, at a time of the server's clock."""
    width: int | None = None
    """None: a share of what is left."""
    sort: Sort | None = None
    from_width: int = 0
    """Of the terminal; where there is less room, other columns are worth more."""
    below_width: int = 1_000_000
    right: bool = False


def columns(width: int, *, with_namespace: bool) -> list[Column]:
    return [
        column
        for column in COLUMNS
        if column.from_width <= width < column.below_width and (with_namespace or column.title != "namespace")
    ]


def _state(worker: Worker, server_ms: int) -> Text:
    word = standing(worker)
    style = next((style for mark, style in STYLES if mark in word), "")
    return Text(word, style)


STYLES = (
    ("suspect", "bold yellow"),
    ("inactive", "red"),
    ("cleaned up", "dim"),
    ("draining", "magenta"),
    ("paused", "magenta"),
    ("active", "green"),
)


def _lease(worker: Worker, server_ms: int) -> Text:
    left_ms = lease_left_ms(worker, server_ms)
    if left_ms is None:
        return Text(_how_it_left(worker, server_ms), "dim")
    part = left_ms / (to_ms(worker.granted_lease_duration) or 1)
    filled = min(max(round(part * BAR_WIDTH), 0), BAR_WIDTH)
    style = "green" if part > 0.5 else "yellow" if part > 0.2 else "red"
    return Text.assemble(
        (FULL * filled, style), (EMPTY * (BAR_WIDTH - filled), "dim"), f" {_brief(left_ms):>7}"
    )


def _brief(ms: int) -> str:
    """A tenth of a second says something about a short time only."""
    return f"{ms / 1_000:.1f} s" if ms < 60_000 else in_words(ms // 60_000 * 60_000)


def _how_it_left(worker: Worker, server_ms: int) -> str:
    why = ENDINGS.get(worker.inactive_reason, "")
    if worker.inactive_reason not in UNHEARD or not worker.HasField("last_heartbeat_time"):
        return why
    return f"{why} {_brief(max(0, server_ms - worker.last_heartbeat_time.ToMilliseconds()))}"


def _count(worker: Worker, server_ms: int) -> Text:
    return Text(f"{worker.bound_activity_count:,}" if worker.bound_activity_count else "")


def _loop_lag(worker: Worker, server_ms: int) -> Text:
    return Text(in_words(to_ms(worker.loop_lag)) if worker.HasField("loop_lag") else "", "yellow")


def _stream(worker: Worker, server_ms: int) -> Text:
    return Text("attached" if worker.attached else "broken" if worker.suspect else "")


def _text(field: str, style: str = "") -> Callable[[Worker, int], Text]:
    return lambda worker, server_ms: Text(inert(getattr(worker, field)), style)


COLUMNS = (
    Column("namespace", _text("namespace", "blue"), from_width=60),
    Column("worker", _text("worker_instance_key"), sort=Sort.KEY),
    Column("state", _state, 10, Sort.STATE, below_width=ROOMY),
    Column("state", _state, len("suspect+draining"), Sort.STATE, from_width=ROOMY),
    Column("lease", _lease, BAR_WIDTH + 8, Sort.LEASE, from_width=45),
    Column("act", _count, 5, Sort.ACTIVITIES, right=True),
    Column("build", _text("build_id"), from_width=72),
    Column("host", _text("host_name"), from_width=78),
    Column("task queue", _text("task_queue"), from_width=110),
    Column("stream", _stream, 8, from_width=120),
    Column("loop lag", _loop_lag, 8, from_width=130, right=True),
    Column("job", _text("current_job", "dim"), from_width=150),
)
