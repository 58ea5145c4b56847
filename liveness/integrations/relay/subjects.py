"""For consumers of what is relayed to NATS JetStream: the subjects, and whom a subject is about. Needs no server around it.

    subject = reschedules_subject("orders", "resize")           # of one task queue, whichever shard
    subject_of(message.subject)                                 # RescheduleSubject("orders", "resize", 17)

A name becomes one token of a subject: letters and digits of ASCII, - and _ stand for themselves, every other byte of its
UTF-8 is written =XX in hexadecimal, and the empty name is a single =. So no name contains a dot or a wildcard, and no
two names have the same token.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MESSAGE_ID_HEADER = "Nats-Msg-Id"
"""The same for every repetition of a message; the stream drops repetitions within its duplicate window."""

RESCHEDULES = "liveness.reschedules"
EVENTS = "liveness.events"
ALL = "liveness.>"
"""Every subject there is."""
NO_NAMESPACE = "=none"
"""In the place of a namespace, for events that have none. No name has this token: what follows = in one is a number."""
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
    """A name of up to 255 bytes, as the server accepts them."""
    raw = name.encode()
    if len(raw) > NAME_BYTES_MAX:
        raise ValueError(f"a name has at most {NAME_BYTES_MAX} bytes, this one has {len(raw)}")
    if not raw:
        return "="
    return "".join(chr(byte) if _PLAIN.match(bytes([byte])) else f"={byte:02X}" for byte in raw)


def name_of(token: str) -> str:
    """What `token_of` was given."""
    if not _TOKEN.fullmatch(token):
        raise ValueError(f"{token!r} is not the token of a name")
    raw = b"" if token == "=" else _ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), token.encode())
    name = raw.decode()  # what is not UTF-8 is a ValueError, too
    if token_of(name) != token:
        raise ValueError(f"{token!r} is not the token of a name")
    return name


def reschedules_subject(
    namespace: str | None = None, task_queue: str | None = None, shard: int | None = None
) -> str:
    """None stands for any, as in the filter of a consumer."""
    parts = ("*" if part is None else token_of(part) for part in (namespace, task_queue))
    return ".".join((RESCHEDULES, *parts, "*" if shard is None else str(shard)))


def events_subject(namespace: str | None = None, shard: int | None = None) -> str:
    """None stands for any, as in the filter of a consumer; see `NO_NAMESPACE` for events that have none."""
    return _event_subject(
        "*" if namespace is None else token_of(namespace), "*" if shard is None else str(shard)
    )


def event_subject(namespace: str | None, shard: int) -> str:
    """Of one event. None: it has no namespace."""
    return _event_subject(NO_NAMESPACE if namespace is None else token_of(namespace), str(shard))


def _event_subject(namespace: str, shard: str) -> str:
    return f"{EVENTS}.{namespace}.{shard}"


def subject_of(subject: str) -> RescheduleSubject | EventSubject:
    """Whom a message is about, by its subject; ValueError for a subject that is none of ours."""
    match subject.split("."):
        case ["liveness", "reschedules", namespace, task_queue, shard] if _SHARD.fullmatch(shard):
            return RescheduleSubject(name_of(namespace), name_of(task_queue), int(shard))
        case ["liveness", "events", namespace, shard] if _SHARD.fullmatch(shard):
            return EventSubject(None if namespace == NO_NAMESPACE else name_of(namespace), int(shard))
    raise ValueError(f"{subject!r} is not a subject of the relay")
