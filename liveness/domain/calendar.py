"""When a schedule fires: cron expressions in a time zone, and intervals. Pure; times are wall times.

A cron expression has five fields: minute, hour, day of the month, month, day of the week. If both days are restricted, one of them
must match, as in every cron. Where clocks are moved, these rules hold:

- A schedule that is restricted to certain hours fires once for each local time that matches. A time that occurs twice counts when it
  occurs first; one that is skipped counts at the moment after the gap, and several skipped ones there count as one.
- A schedule for every hour fires whenever the clock on the wall shows a time that matches: in both of two equal hours, and never in
  a gap.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

MINUTE_MS = 60_000
EXPRESSION_BYTES_MAX = 200
TIME_ZONE_BYTES_MAX = 64
INTERVAL_MS_MIN = 1_000
_YEARS_MAX = 9
"""29 February may be eight years away, around a year like 2100."""
_LAST_YEAR = 9_990
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_PART = re.compile(r"(\*|[0-9]{1,2}|[a-z]{3})(?:-([0-9]{1,2}|[a-z]{3}))?(?:/([0-9]{1,4}))?")
_ZONE_NAME = re.compile(r"[A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+)*")


class CalendarError(Exception):
    """A cron expression or a time zone that cannot be used; the text says why."""


class _Field(NamedTuple):
    name: str
    lowest: int
    highest: int
    names: tuple[str, ...] = ()
    first_name: int = 0


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, _MONTHS, 1),
    _Field("day of the week", 0, 7, _WEEKDAYS, 0),
)


class Cron(NamedTuple):
    """A parsed expression: the values that match, in order."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    either_day: bool
    """Both kinds of days are restricted, and one of them is enough."""

    def matches_date(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        in_month, in_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return in_month or in_week if self.either_day else in_month and in_week

    @property
    def is_every_hour(self) -> bool:
        return len(self.hours) == 24


@lru_cache(maxsize=1_000)
def parse_cron(expression: str) -> Cron:
    """Raises `CalendarError`."""
    parts = _MACROS.get(expression.strip().lower(), expression).lower().split()
    if len(parts) != len(_FIELDS):
        raise CalendarError(
            "must have five fields: minute, hour, day of the month, month, day of the week; "
            f"or be one of {', '.join(_MACROS)}"
        )
    minutes, hours, days, months, weekdays = map(_parse_field, _FIELDS, parts)
    weekdays = frozenset(day % 7 for day in weekdays)
    cron = Cron(
        tuple(sorted(minutes)),
        tuple(sorted(hours)),
        days,
        months,
        weekdays,
        not parts[2].startswith("*") and not parts[4].startswith("*"),
    )
    if not cron.either_day and all(day > monthrange(2_024, month)[1] for month in months for day in days):
        raise CalendarError("names days that its months do not have")
    return cron


def _parse_field(field: _Field, text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise CalendarError(f'has "{part}" as {field.name}, which is no value, range, step or *')
        first, last, step = match.groups()
        if first == "*":
            low, high = field.lowest, field.highest
            if last is not None:
                raise CalendarError(f'has "{part}" as {field.name}; a range begins with a value')
        else:
            low = _value(field, first)
            high = _value(field, last) if last is not None else field.highest if step else low
        if field.highest == 7 and last is not None and last.startswith("sun"):
            high = 7  # a range may end with Sunday
        if low > high:
            raise CalendarError(f'has "{part}" as {field.name}, a range that ends before it begins')
        if step is not None and not 1 <= int(step) <= field.highest + 1:
            raise CalendarError(f'has "{part}" as {field.name}; a step is 1 to {field.highest + 1}')
        found.update(range(low, high + 1, int(step or 1)))
    return frozenset(found)


def _value(field: _Field, text: str) -> int:
    if text in field.names:
        return field.names.index(text) + field.first_name
    if not text.isdigit() or not field.lowest <= int(text) <= field.highest:
        raise CalendarError(
            f'has "{text}" as {field.name}, which must be {field.lowest} to {field.highest}'
            + (f" or {field.names[0]} to {field.names[-1]}" if field.names else "")
        )
    return int(text)


def check_time_zone(name: str) -> None:
    """Raises `CalendarError`."""
    zone_of(name)


@lru_cache(maxsize=1_000)
def zone_of(name: str) -> ZoneInfo:
    if not _ZONE_NAME.fullmatch(name):
        raise CalendarError("must be a name like Europe/Berlin or UTC")
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise CalendarError(f"{name} is not known here; use a name like Europe/Berlin or UTC") from None


def next_cron_ms(expression: str, time_zone: str, after_ms: int) -> int:
    """The first moment after `after_ms` at which the expression fires; 0 if there is none."""
    cron, zone = parse_cron(expression), zone_of(time_zone)
    after = datetime.fromtimestamp(after_ms // 1_000, UTC)
    if after.year > _LAST_YEAR:
        return 0
    found = (
        _next_of_every_hour(cron, zone, after) if cron.is_every_hour else _next_of_hours(cron, zone, after)
    )
    return 0 if found is None else int(found.timestamp()) * 1_000


def _next_of_every_hour(cron: Cron, zone: ZoneInfo, after: datetime) -> datetime | None:
    minutes = frozenset(cron.minutes)
    # The clock on the wall shows whole minutes at other seconds where the offset has seconds, as offsets before 1972 do.
    candidate = _next_minute(after, zone)
    end = after.year + _YEARS_MAX
    while candidate.year <= end:
        local = candidate.astimezone(zone)
        if cron.matches_date(local.date()):
            if local.minute in minutes:
                return candidate
            candidate = _next_minute(candidate, zone)
            continue
        day = next(_matching_days(cron, local.date() + timedelta(days=1)), None)
        if day is None:
            return None
        candidate = max(_moment(day, 0, 0, zone), _next_minute(candidate, zone))
    return None


def _next_minute(after: datetime, zone: ZoneInfo) -> datetime:
    seconds = after.astimezone(zone).second
    return after + timedelta(seconds=60 - seconds)


def _next_of_hours(cron: Cron, zone: ZoneInfo, after: datetime) -> datetime | None:
    # The day before: where the clock is set back at midnight, a later local day is not always a later moment.
    for day in _matching_days(cron, after.astimezone(zone).date() - timedelta(days=1)):
        for hour in cron.hours:
            for minute in cron.minutes:
                moment = _moment(day, hour, minute, zone)
                if moment > after:
                    return moment
    return None


def _matching_days(cron: Cron, first: date) -> Iterator[date]:
    day = first
    for _ in range(_YEARS_MAX * 366):
        if cron.matches_date(day):
            yield day
        day += timedelta(days=1)


def _moment(day: date, hour: int, minute: int, zone: ZoneInfo) -> datetime:
    """When the clock on the wall shows this time first; if it skips it, the moment after the gap."""
    local = datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone)
    moment = local.astimezone(UTC)
    if moment.astimezone(zone).replace(tzinfo=None) == local.replace(tzinfo=None):
        return moment
    # Within a gap, `fold=0` has the offset from before it, so that the moment lies after the gap, by as much as the local time lies
    # after its beginning. The change of the offset itself is the moment that is sought.
    after = local.utcoffset()
    before = local.replace(fold=1).utcoffset()
    assert after is not None
    assert before is not None
    low, high = moment - abs(before - after), moment
    offset = high.astimezone(zone).utcoffset()
    while high - low > timedelta(seconds=1):
        middle = low + (high - low) // 2
        middle = middle.replace(microsecond=0)
        if middle.astimezone(zone).utcoffset() == offset:
            high = middle
        else:
            low = middle
    return high


def next_interval_ms(every_ms: int, offset_ms: int, after_ms: int) -> int:
    """The first moment after `after_ms` that lies `offset_ms` after a multiple of the interval since 1970 began."""
    return ((after_ms - offset_ms) // every_ms + 1) * every_ms + offset_ms
