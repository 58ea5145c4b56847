"""The state of the view that keys change: sort order, filter, position."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from liveness.cli.worker_filter import ACTIVE_OR_INACTIVE, STATES
from liveness.v1.service_pb2 import WorkerFilter

FILTER_CHARACTERS_MAX = 200


class Sort(Enum):
    KEY = "worker"
    STATE = "state"
    LEASE = "lease"
    ACTIVITIES = "act"


SORT_ORDER = tuple(Sort)
FIELDS = {"host": "host_name", "build": "build_id", "queue": "task_queue"}
SYNTAX = "the beginning of a key, host=…, build=…, queue=…, state=…, separated by blanks"


class BadFilter(ValueError):
    pass


def parse_filter(text: str) -> WorkerFilter:
    """Parse the text of a filter, which the server evaluates. Without a state: active and inactive workers."""
    where = WorkerFilter()
    for word in text.split():
        name, equals, value = word.partition("=")
        if not equals:
            if where.key_prefix:
                raise BadFilter(f"give one beginning of a key, not both {where.key_prefix} and {word}")
            where.key_prefix = word
        elif name == "state":
            if value not in STATES:
                raise BadFilter(f"there is no state {value}; there are {', '.join(STATES)}")
            where.states.append(STATES[value])
        elif name in FIELDS:
            setattr(where, FIELDS[name], value)
        else:
            raise BadFilter(f"{name}= is not a filter; write {SYNTAX}")
    if not where.states:
        where.states.extend(ACTIVE_OR_INACTIVE.values())
    return where


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewState:
    sort: Sort = Sort.KEY
    reverse: bool = False
    first: int = 0
    """The index of the top row."""
    filter: str = ""
    filter_input: str | None = None
    """The text while the user types a filter; None otherwise."""
    paused: bool = False
    help: bool = False

    @property
    def where(self) -> WorkerFilter:
        """The filter that is being typed, if it is valid; otherwise the current filter."""
        for text in (self.filter_input, self.filter):
            if text is not None:
                try:
                    return parse_filter(text)
                except BadFilter:
                    continue
        return parse_filter("")


@dataclass(frozen=True, slots=True)
class Viewport:
    """The number of rows that fit, and the number of rows that exist."""

    rows: int
    row_count: int

    @property
    def first_row_max(self) -> int:
        """The largest index of the top row."""
        return max(0, self.row_count - self.rows)


def handle_key(view_state: ViewState, key: str, viewport: Viewport) -> ViewState | None:
    """The state after a key press; None to quit."""
    if view_state.filter_input is not None:
        return _edit_filter(view_state, view_state.filter_input, key)
    if view_state.help:
        return None if key == "q" else replace(view_state, help=False)
    match key:
        case "q":
            return None
        case "?" | "h":
            return replace(view_state, help=True)
        case "p":
            return replace(view_state, paused=not view_state.paused)
        case "/":
            return replace(view_state, filter_input=view_state.filter)
        case "escape":
            return replace(view_state, filter="", first=0)
        case "s" | "right":
            return _change_sort(view_state, +1)
        case "left":
            return _change_sort(view_state, -1)
        case "r":
            return replace(view_state, reverse=not view_state.reverse, first=0)
        case "up" | "k":
            return _scroll_to(view_state, view_state.first - 1, viewport)
        case "down" | "j":
            return _scroll_to(view_state, view_state.first + 1, viewport)
        case "page up":
            return _scroll_to(view_state, view_state.first - viewport.rows, viewport)
        case "page down" | " ":
            return _scroll_to(view_state, view_state.first + viewport.rows, viewport)
        case "home" | "g":
            return _scroll_to(view_state, 0, viewport)
        case "end" | "G":
            return _scroll_to(view_state, viewport.first_row_max, viewport)
    return view_state


def _change_sort(view_state: ViewState, step: int) -> ViewState:
    index = (SORT_ORDER.index(view_state.sort) + step) % len(SORT_ORDER)
    return replace(view_state, sort=SORT_ORDER[index], reverse=False, first=0)


def _scroll_to(view_state: ViewState, first: int, viewport: Viewport) -> ViewState:
    return replace(view_state, first=min(max(first, 0), viewport.first_row_max))


def _edit_filter(view_state: ViewState, typed: str, key: str) -> ViewState:
    match key:
        case "enter":
            try:
                parse_filter(typed)
            except BadFilter:
                return view_state  # the footer shows the error
            return replace(view_state, filter=typed.strip(), filter_input=None, first=0)
        case "escape":
            return replace(view_state, filter_input=None, first=0)
        case "backspace":
            return replace(view_state, filter_input=typed[:-1], first=0)
        case "clear":
            return replace(view_state, filter_input="", first=0)
    if len(key) == 1 and key.isprintable() and len(typed) < FILTER_CHARACTERS_MAX:
        return replace(view_state, filter_input=typed + key, first=0)
    return view_state
