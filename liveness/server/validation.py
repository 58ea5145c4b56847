"""Validates fields of requests. An error names the field and the rule."""

from __future__ import annotations

import re
from collections.abc import Sized

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from liveness.domain.errors import InvalidField
from liveness.domain.keys import IDENTIFIER_BYTES_MAX
from liveness.domain.policy import DURATION_MS_MAX

TEXT_BYTES_MAX = 4_096
SEQUENCE_MAX = 2**63 - 1
COUNTER_MAX = 2**40
STATES_MAX = 100
"""In a filter, in which a state may be repeated."""
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_CHARS_WITHIN_LIMIT = IDENTIFIER_BYTES_MAX // 4


def require_identifier(field: str, value: str) -> str:
    if not value:
        raise InvalidField(field=field, rule="must be set")
    return optional_identifier(field, value)


def optional_identifier(field: str, value: str) -> str:
    if len(value) > _CHARS_WITHIN_LIMIT and len(value.encode()) > IDENTIFIER_BYTES_MAX:
        raise InvalidField(field=field, rule=f"must be at most {IDENTIFIER_BYTES_MAX} bytes of UTF-8")
    if not value.isprintable() and _CONTROL_CHARACTERS.search(value):
        raise InvalidField(field=field, rule="must not contain control characters")
    return value


def one_line(field: str, value: str, bytes_max: int) -> str:
    if len(value.encode()) > bytes_max:
        raise InvalidField(field=field, rule=f"must be at most {bytes_max} bytes of UTF-8")
    if _CONTROL_CHARACTERS.search(value):
        raise InvalidField(field=field, rule="must not contain control characters")
    return value


def is_short_printable_ascii(names: str) -> bool:
    """A cheap check of several names, concatenated. True: none is too long or has control characters. False: check each
    by itself."""
    return len(names) <= IDENTIFIER_BYTES_MAX and names.isascii() and names.isprintable()


def text(field: str, value: str) -> str:
    if len(value) > TEXT_BYTES_MAX or len(value.encode()) > TEXT_BYTES_MAX:
        raise InvalidField(field=field, rule=f"must be at most {TEXT_BYTES_MAX} bytes of UTF-8")
    return value


def duration_ms(field: str, value: Duration, *, allow_zero: bool = False) -> int:
    """Protobuf itself does not validate the seconds and nanos of a Duration."""
    seconds, nanos = value.seconds, value.nanos
    if not -999_999_999 <= nanos <= 999_999_999 or (seconds and nanos and (seconds < 0) != (nanos < 0)):
        raise InvalidField(
            field=field, rule="is malformed: nanos must be below one second and of the same sign"
        )
    if seconds < 0 or nanos < 0:
        raise InvalidField(field=field, rule="must not be negative")
    if not seconds and not nanos and not allow_zero:
        raise InvalidField(field=field, rule="must be more than zero; leave it unset for the default")
    if seconds * 1_000 > DURATION_MS_MAX:
        raise InvalidField(field=field, rule="must be at most 100 years")
    return seconds * 1_000 + (nanos + 999_999) // 1_000_000


def timestamp_ns(field: str, value: Timestamp) -> int:
    # 0001-01-01 to 9999-12-31, as protobuf documents it.
    if not -62_135_596_800 <= value.seconds <= 253_402_300_799 or not 0 <= value.nanos <= 999_999_999:
        raise InvalidField(field=field, rule="must lie in the years 1 to 9999 with nanos below one second")
    return value.seconds * 1_000_000_000 + value.nanos


def check_count(field: str, values: Sized, count_max: int) -> None:
    """Check the length of a list before anything loops over it. Empty elements count."""
    if len(values) > count_max:
        raise InvalidField(field=field, rule=f"must have at most {count_max} elements")


def page_size(value: int) -> int:
    if not 0 <= value <= 1_000:
        raise InvalidField(field="page_size", rule="must be 0 (for the default) to 1000")
    return value or 100
