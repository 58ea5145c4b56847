"""Format components and their groups for people."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import click

from liveness.cli.errors import escape_control
from liveness.cli.event_text import describe_event
from liveness.cli.output import (
    enum_name,
    format_age,
    format_elapsed,
    format_time,
    format_timestamp,
    print_fields,
    print_table,
)
from liveness.domain.component import STATUSES_WITH_PROCESS
from liveness.v1.component_pb2 import (
    Component,
    ComponentAction,
    ComponentGroup,
    ComponentOrder,
    ComponentStatus,
    ProcessExit,
)
from liveness.v1.event_pb2 import Event

COLUMNS = ("component", "status", "pid", "uptime", "current job", "restarts", "last exit", "reason")
HISTORY_COLUMNS = ("time", "status", "reason", "by", "pid", "restarts", "exit", "details")
COMPONENT_CHANGED = "ComponentChanged"
LEASE_EVENTS = frozenset(
    (
        "WorkerRegistered",
        "SessionReplaced",
        "WorkerResurrected",
        "WorkerDeactivated",
        "WorkerCleanedUp",
        "WorkerForgotten",
    )
)
_RUNNING = frozenset(int(status) for status in STATUSES_WITH_PROCESS)


_PREFIX = re.compile(r"(\d{4}-\d\d-\d\dT[\d:.]+Z) ([oe]) ")
"""Of a line in the output that a supervisor keeps."""


class GroupFinder(NamedTuple):
    """The groups of a namespace by name."""

    groups: Mapping[str, ComponentGroup]

    def is_supervised(self, name: str) -> bool:
        group = self.groups.get(name)
        return group is not None and group.supervised


def component_row(component: Component, *, is_supervised: bool) -> tuple[object, ...]:
    runs = component.status in _RUNNING
    return (
        component.component_id,
        status_text(component, is_supervised=is_supervised),
        component.process_id or "",
        format_elapsed(component, "process_start_time") if runs else "",
        component.current_job,
        component.restart_count,
        exit_text(component.last_exit) if component.HasField("last_exit") else "",
        _reason_beside(component.reason, enum_name(ComponentStatus, component.status)),
    )


def _reason_beside(reason: str, status: str) -> str:
    """The reason, unless it is what the status says, too."""
    return "" if reason == status.lower() else reason


def print_components(components: Iterable[Component], finder: GroupFinder) -> bool:
    """Returns whether there were any."""
    rows = [
        component_row(component, is_supervised=finder.is_supervised(component.group))
        for component in components
    ]
    if rows:
        print_table(COLUMNS, rows)
    return bool(rows)


def status_text(component: Component, *, is_supervised: bool) -> str:
    """The status with its flags, for example STOPPED (paused) or STOPPED (no supervisor)."""
    word = enum_name(ComponentStatus, component.status)
    flags = []
    if component.paused and word != "PAUSED":
        flags.append("paused")
    if not is_supervised:
        flags.append("no supervisor")
    return f"{word} ({', '.join(flags)})" if flags else word


def exit_text(ended: ProcessExit) -> str:
    if ended.signal:
        return f"killed by {ended.signal}"
    return f"exit code {ended.code}" if ended.HasField("code") else "ended"


def print_component(component: Component, group: ComponentGroup | None) -> None:
    is_supervised = group is not None and group.supervised
    print_fields(_component_fields(component, is_supervised=is_supervised))
    if component.HasField("last_exit") and component.last_exit.last_lines:
        click.echo("\nlast lines of its output before that exit:")
        for line in component.last_exit.last_lines:
            click.echo(f"  {output_line(line)}")
    waiting = [
        order
        for order in (group.waiting_orders if group else ())
        if not order.component_ids or component.component_id in order.component_ids
    ]
    if waiting:
        click.echo("\norders that wait for the supervisor:")
        print_table(
            ("number", "order", "given", "by", "reason"),
            (
                (order.number, order_text(order), format_age(order, "time"), order.by, order.reason)
                for order in waiting
            ),
        )


def output_line(line: str) -> str:
    """A line that a process wrote, without what a terminal would interpret; tabs stay. Of its streams, only stderr is named."""
    if prefix := _PREFIX.match(line):
        line = f"{prefix[1]} {'stderr: ' if prefix[2] == 'e' else ''}{line[prefix.end() :]}"
    return "\t".join(escape_control(part) for part in line.split("\t"))


def order_text(order: ComponentOrder) -> str:
    word = enum_name(ComponentAction, order.action).lower().replace("_", " ")
    return f"{word} to {order.count}" if word == "scale" else word


def _component_fields(component: Component, *, is_supervised: bool) -> list[tuple[str, object]]:
    since = format_time(component, "status_time")
    restarted = format_time(component, "last_restart_time")
    ended = component.last_exit if component.HasField("last_exit") else None
    ended_at = format_time(ended, "time") if ended else ""
    return [
        ("component", component.component_id),
        ("namespace", component.namespace),
        ("group", component.group),
        ("status", status_text(component, is_supervised=is_supervised)),
        ("since", since and f"{since} ({format_age(component, 'status_time')})"),
        ("reason", component.reason),
        ("by", component.by),
        ("shall run", "yes" if component.wanted else "no"),
        ("takes jobs", "no" if component.paused else "yes"),
        ("process", component.process_id or ""),
        ("started", format_time(component, "process_start_time")),
        ("uptime", format_elapsed(component, "process_start_time") if component.status in _RUNNING else ""),
        ("current job", component.current_job),
        ("restarts", component.restart_count),
        ("last restart", restarted and f"{restarted} ({format_age(component, 'last_restart_time')})"),
        ("last exit", f"{exit_text(ended)}{f' at {ended_at}' if ended_at else ''}" if ended else ""),
        ("host", component.host_name),
        ("build", component.build_id),
        ("lease epoch", component.lease_epoch),
        ("first started", format_time(component, "create_time")),
        ("last seen", format_age(component, "last_seen_time")),
        ("details", details_text(component.details_json)),
    ]


# -- history


def health_events(events: Iterable[Event]) -> Iterator[Event]:
    """The events that say how a component was: its own changes, and the beginnings and ends of its lease."""
    return (event for event in events if event.type == COMPONENT_CHANGED or event.type in LEASE_EVENTS)


def history_row(event: Event) -> tuple[object, ...]:
    time = format_timestamp(event.time)
    if event.type != COMPONENT_CHANGED:
        return time, "", describe_event(event).text, "", "", "", "", ""
    data = event_data(event)
    ended = data.get("last_exit")
    return (
        time,
        data.get("status", ""),
        _reason_beside(data.get("reason", ""), data.get("status", "")),
        data.get("by", ""),
        data.get("process_id") or "",
        data.get("restart_count", ""),
        _exit_data_text(ended) if isinstance(ended, dict) else "",
        details_text(data.get("details", "")),
    )


def details_text(details: str) -> str:
    """What a process tells about itself, in the order in which it does: files=3 errors=0."""
    try:
        told = json.loads(details or "{}")
    except ValueError:
        return details
    return " ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in told.items()
    )


def event_data(event: Event) -> dict[str, Any]:
    try:
        data = json.loads(event.data_json or "{}")
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def history_json(event: Event) -> dict[str, Any]:
    """One snapshot: what the event says, with its time and type."""
    return {
        "time": format_timestamp(event.time, "%Y-%m-%dT%H:%M:%S"),
        "sequence": event.sequence,
        "type": event.type,
        **event_data(event),
    }


def _exit_data_text(ended: Mapping[str, Any]) -> str:
    if ended.get("signal"):
        return f"killed by {ended['signal']}"
    return "ended" if ended.get("code") is None else f"exit code {ended['code']}"
