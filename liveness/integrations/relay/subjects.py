"""The subjects of messages that are relayed to NATS JetStream, for the relay and its consumers.

    subject = reschedules_subject("orders", "resize")           # of one task queue, in any shard
    subject_of(message.subject)                                 # RescheduleSubject("orders", "resize", 17)

A name becomes one token of a subject: letters and digits of ASCII, - and _ stand for themselves, every other byte of its
UTF-8 is written =XX in hexadecimal, and the empty name is a single =. So no token contains a dot or a wildcard, and no two
names have the same token. The module imports nothing of the server.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MESSAGE_ID_HEADER = "Nats-Msg-Id"
"""The id of a message, the same for every repetition; the stream drops repetitions within its duplicate window."""

RESCHEDULES = "liveness.reschedules"
EVENTS = "liveness.events"
ALL = "liveness.>"
"""Matches every subject of the relay."""
NO_NAMESPACE = "=none"
"""The token of events that have no namespace. No name has this token: in names, two hexadecimal digits follow an =."""
NAME_BYTES_MAX = 255

_PLAIN = re.compile(rb"[A-Za-z0-9_-]")
_TOKEN = re.compile(r"=|(?:[A-Za-z0-9_-]|=[0-9A-F]{2})+")
_ESCAPED = re.compile(rb"=([0-9A-F]{2})")
_SHARD = re.compile(r"0|[1-9][0-9]{0,9}")


class RescheduleSubject(NamedTuple):
    namespace: str
    task_queue: str
    shard: int


class EventSubject(NamedTuple):
    namespace: str | None
    shard: int


def token_of(name: str) -> str:
    """The token of a name of up to 255 bytes, the longest that the server accepts."""
    raw = name.encode()
    if len(raw) > NAME_BYTES_MAX:
        raise ValueError(f"a name has at most {NAME_BYTES_MAX} bytes, this one has {len(raw)}")
    if not raw:
        return "="
    return "".join(chr(byte) if _PLAIN.match(bytes([byte])) else f"={byte:02X}" for byte in raw)


def name_of(token: str) -> str:
    """The name that `token_of` made the token from."""
    if not _TOKEN.fullmatch(token):
        raise ValueError(f"{token!r} is not the token of a name")
    raw = b"" if token == "=" else _ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), token.encode())
    name = raw.decode()  # raises ValueError if it is not UTF-8
    if token_of(name) != token:
        raise ValueError(f"{token!r} is not the token of a name")
    return name


def reschedules_subject(
    namespace: str | None = None, task_queue: str | None = None, shard: int | None = None
) -> str:
    """The subject of reschedules. None is a wildcard, for the filter of a consumer."""
    parts = ("*" if part is None else token_of(part) for part in (namespace, task_queue))
    return ".".join((RESCHEDULES, *parts, "*" if shard is None else str(shard)))


def events_subject(namespace: str | None = None, shard: int | None = None) -> str:
    """The subject of events. None is a wildcard, for the filter of a consumer; events without a namespace have `NO_NAMESPACE`."""
    return _event_subject(
        "*" if namespace is None else token_of(namespace), "*" if shard is None else str(shard)
    )


def event_subject(namespace: str | None, shard: int) -> str:
    """The subject of one event. None: the event has no namespace."""
    return _event_subject(NO_NAMESPACE if namespace is None else token_of(namespace), str(shard))


def _event_subject(namespace: str, shard: str) -> str:
    return f"{EVENTS}.{namespace}.{shard}"


def subject_of(subject: str) -> RescheduleSubject | EventSubject:
    """Parse the subject of a message. Raises ValueError for a subject that is not of the relay."""
    match subject.split("."):
        case ["liveness", "reschedules", namespace, task_queue, shard] if _SHARD.fullmatch(shard):
            return RescheduleSubject(name_of(namespace), name_of(task_queue), int(shard))
        case ["liveness", "events", namespace, shard] if _SHARD.fullmatch(shard):
            return EventSubject(None if namespace == NO_NAMESPACE else name_of(namespace), int(shard))
    raise ValueError(f"{subject!r} is not a subject of the relay")
