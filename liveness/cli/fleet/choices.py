"""What the person at the terminal has chosen to see, and how keys change it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from liveness.cli.worker_filter import PRESENT, STATES
from liveness.v1.service_pb2 import WorkerFilter

FILTER_CHARACTERS_MAX = 200


class Sort(Enum):
    KEY = "worker"
    STATE = "state"
    LEASE = "lease"
    ACTIVITIES = "act"


ORDER = tuple(Sort)
FIELDS = {"host": "host_name", "build": "build_id", "queue": "task_queue"}
SYNTAX = "the beginning of a key, host=…, build=…, queue=…, state=…; blanks between them"


class BadFilter(ValueError):
    pass


def parse_filter(text: str) -> WorkerFilter:
    """All of it is looked up by the server. Without a state: those that are not gone for good."""
    where = WorkerFilter()
    for word in text.split():
        name, equals, value = word.partition("=")
        if not equals:
            if where.key_prefix:
                raise BadFilter(f"a key begins in one way only, not with {where.key_prefix} and {word}")
            where.key_prefix = word
        elif name == "state":
            if value not in STATES:
                raise BadFilter(f"there is no state {value}; there are {', '.join(STATES)}")
            where.states.append(STATES[value])
        elif name in FIELDS:
            setattr(where, FIELDS[name], value)
        else:
            raise BadFilter(f"there is no {name}= to filter by; write {SYNTAX}")
    if not where.states:
        where.states.extend(PRESENT.values())
    return where


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    sort: Sort = Sort.KEY
    reverse: bool = False
    first: int = 0
    """Of the rows, the one on top."""
    filter: str = ""
    typing: str | None = None
    """The filter while it is being typed."""
    paused: bool = False
    help: bool = False

    @property
    def where(self) -> WorkerFilter:
        """Of what is being typed, as soon as it makes sense."""
        for text in (self.typing, self.filter):
            if text is not None:
                try:
                    return parse_filter(text)
                except BadFilter:
                    continue
        return parse_filter("")


@dataclass(frozen=True, slots=True)
class Room:
    """What the picture has room for, and how much there is."""

    rows: int
    known: int

    @property
    def last(self) -> int:
        """The lowest that may be on top."""
        return max(0, self.known - self.rows)


def press(choices: Choices, key: str, room: Room) -> Choices | None:
    """None: enough seen."""
    if choices.typing is not None:
        return _type(choices, choices.typing, key)
    if choices.help:
        return None if key == "q" else replace(choices, help=False)
    match key:
        case "q":
            return None
        case "?" | "h":
            return replace(choices, help=True)
        case "p":
            return replace(choices, paused=not choices.paused)
        case "/":
            return replace(choices, typing=choices.filter)
        case "escape":
            return replace(choices, filter="", first=0)
        case "s" | "right":
            return _sorted(choices, +1)
        case "left":
            return _sorted(choices, -1)
        case "r":
            return replace(choices, reverse=not choices.reverse, first=0)
        case "up" | "k":
            return _scrolled(choices, choices.first - 1, room)
        case "down" | "j":
            return _scrolled(choices, choices.first + 1, room)
        case "page up":
            return _scrolled(choices, choices.first - room.rows, room)
        case "page down" | " ":
            return _scrolled(choices, choices.first + room.rows, room)
        case "home" | "g":
            return _scrolled(choices, 0, room)
        case "end" | "G":
            return _scrolled(choices, room.last, room)
    return choices


def _sorted(choices: Choices, step: int) -> Choices:
    place = (ORDER.index(choices.sort) + step) % len(ORDER)
    return replace(choices, sort=ORDER[place], reverse=False, first=0)


def _scrolled(choices: Choices, first: int, room: Room) -> Choices:
    return replace(choices, first=min(max(first, 0), room.last))


def _type(choices: Choices, typed: str, key: str) -> Choices:
    match key:
        case "enter":
            try:
                parse_filter(typed)
            except BadFilter:
                return choices  # it says why; nothing is taken away
            return replace(choices, filter=typed.strip(), typing=None, first=0)
        case "escape":
            return replace(choices, typing=None, first=0)
        case "backspace":
            return replace(choices, typing=typed[:-1], first=0)
        case "clear":
            return replace(choices, typing="", first=0)
    if len(key) == 1 and key.isprintable() and len(typed) < FILTER_CHARACTERS_MAX:
        return replace(choices, typing=typed + key, first=0)
    return choices
