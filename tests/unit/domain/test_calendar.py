"""Cron expressions and intervals, compared with a walk over all minutes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.domain.calendar import (
    CalendarError,
    check_time_zone,
    next_cron_ms,
    next_interval_ms,
    parse_cron,
)

MINUTE = timedelta(minutes=1)
ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "America/Havana",
)
CHANGES = (
    datetime(2026, 3, 29, 1, tzinfo=UTC),  # Berlin, to summer time
    datetime(2026, 10, 25, 1, tzinfo=UTC),  # and back
    datetime(2026, 3, 8, 7, tzinfo=UTC),  # New York
    datetime(2026, 11, 1, 6, tzinfo=UTC),
    datetime(2026, 10, 3, 15, 30, tzinfo=UTC),  # Lord Howe, by half an hour
    datetime(2026, 4, 4, 15, tzinfo=UTC),
    datetime(2026, 3, 8, 5, tzinfo=UTC),  # Havana, at midnight
    datetime(2026, 11, 1, 5, tzinfo=UTC),
    datetime(2026, 2, 28, 23, tzinfo=UTC),
)
NAMES = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


@st.composite
def fields(draw: st.DrawFn, low: int, high: int) -> tuple[str, frozenset[int], bool]:
    """A field, the values that it means, and whether it restricts."""
    kind = draw(st.sampled_from(("all", "all", "value", "range", "step", "list")))
    everything = range(low, high + 1)
    if kind == "all":
        return "*", frozenset(everything), False
    if kind == "value":
        value = draw(st.integers(low, high))
        return str(value), frozenset([value]), True
    if kind == "step":
        step = draw(st.integers(1, high))
        return f"*/{step}", frozenset(everything[::step]), False
    first = draw(st.integers(low, high))
    last = draw(st.integers(first, high))
    if kind == "range":
        step = draw(st.integers(1, 7))
        return f"{first}-{last}/{step}", frozenset(range(first, last + 1)[::step]), True
    return f"{first},{last}", frozenset([first, last]), True


class Expected:
    """The rules as the documentation states them, minute by minute."""

    def __init__(self, parts: list[tuple[str, frozenset[int], bool]], zone: ZoneInfo) -> None:
        self.text = " ".join(part[0] for part in parts)
        self.parts, self.zone = parts, zone

    def matches(self, local: datetime) -> bool:
        minutes, hours, days, months, weekdays = (part[1] for part in self.parts)
        in_month, in_week = local.day in days, local.isoweekday() % 7 in weekdays
        day = in_month or in_week if self.parts[2][2] and self.parts[4][2] else in_month and in_week
        return local.minute in minutes and local.hour in hours and local.month in months and day

    def first_after(self, after: datetime, minutes: int) -> datetime | None:
        every_hour = len(self.parts[1][1]) == 24
        moment = after.replace(second=0, microsecond=0) + MINUTE
        for _ in range(minutes):
            local = moment.astimezone(self.zone)
            before = (moment - MINUTE).astimezone(self.zone)
            if self.matches(local) and (every_hour or local.fold == 0):
                return moment
            if not every_hour:
                # What the clock on the wall skipped in this minute.
                skipped = before.replace(tzinfo=None) + MINUTE
                while skipped < local.replace(tzinfo=None):
                    if self.matches(skipped):
                        return moment
                    skipped += MINUTE
            moment += MINUTE
        return None


@given(
    st.tuples(fields(0, 59), fields(0, 23), fields(1, 31), fields(1, 12), fields(0, 6)),
    st.sampled_from(ZONES),
    st.sampled_from(CHANGES),
    st.integers(-36 * 60, 3 * 60),
    st.integers(0, 59),
)
def test_a_cron_expression_fires_when_the_rules_say(
    parts: tuple[tuple[str, frozenset[int], bool], ...],
    name: str,
    change: datetime,
    minutes: int,
    seconds: int,
) -> None:
    expected = Expected(list(parts), ZoneInfo(name))
    after = change + timedelta(minutes=minutes, seconds=seconds)
    window = 3 * 24 * 60
    first = expected.first_after(after, window)
    try:
        found_ms = next_cron_ms(expected.text, name, int(after.timestamp() * 1_000))
    except CalendarError:
        assert first is None, "only days that do not exist are refused here"
        return
    if first is None:
        assert not found_ms or found_ms > (after + window * MINUTE).timestamp() * 1_000 - 60_000
    else:
        assert datetime.fromtimestamp(found_ms / 1_000, UTC) == first


@pytest.mark.parametrize(
    ("text", "zone", "after", "local"),
    [
        ("30 2 * * *", "Europe/Berlin", "2026-03-29T00:30+01:00", "2026-03-29T03:00:00+02:00"),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T00:30+02:00", "2026-10-25T02:30:00+02:00"),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T02:30+02:00", "2026-10-26T02:30:00+01:00"),
        ("30 * * * *", "Europe/Berlin", "2026-10-25T02:30+02:00", "2026-10-25T02:30:00+01:00"),
        ("30 * * * *", "Europe/Berlin", "2026-03-29T01:30+01:00", "2026-03-29T03:30:00+02:00"),
        ("0 0 29 2 *", "UTC", "2096-03-01T00:00+00:00", "2104-02-29T00:00:00+00:00"),
        ("0 9 13 * fri", "UTC", "2026-02-06T10:00+00:00", "2026-02-13T09:00:00+00:00"),
        ("0 9 * * fri-sun", "UTC", "2026-02-07T10:00+00:00", "2026-02-08T09:00:00+00:00"),
        ("0 9 * jan,MAR 7", "UTC", "2026-02-07T10:00+00:00", "2026-03-01T09:00:00+00:00"),
        ("@monthly", "Asia/Tokyo", "2026-02-07T10:00+00:00", "2026-03-01T00:00:00+09:00"),
        ("5/20 * * * *", "UTC", "2026-02-07T10:26+00:00", "2026-02-07T10:45:00+00:00"),
    ],
)
def test_examples(text: str, zone: str, after: str, local: str) -> None:
    found = next_cron_ms(text, zone, int(datetime.fromisoformat(after).timestamp() * 1_000))
    assert datetime.fromtimestamp(found / 1_000, ZoneInfo(zone)).isoformat() == local


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must have five fields"),
        ("* * * * * *", "must have five fields"),
        ("60 * * * *", "must be 0 to 59"),
        ("* * 0 * *", "must be 1 to 31"),
        ("* * * foo *", "must be 1 to 12 or jan to dec"),
        ("* * * * mon-", "is no value, range, step or *"),
        ("5-3 * * * *", "ends before it begins"),
        ("*/0 * * * *", "a step is 1 to 60"),
        ("*-5 * * * *", "a range begins with a value"),
        ("0 0 31 feb,apr *", "days that its months do not have"),
        ("1,,2 * * * *", "is no value"),
    ],
)
def test_a_wrong_expression_is_refused_with_a_sentence(text: str, says: str) -> None:
    with pytest.raises(CalendarError, match=says.replace("*", r"\*")):
        parse_cron(text)


@pytest.mark.parametrize("name", ["Mars/Base", "../etc/passwd", "/etc/localtime", "", "Europe", "a\0b"])
def test_an_unknown_time_zone_is_refused(name: str) -> None:
    with pytest.raises(CalendarError):
        check_time_zone(name)


@given(st.integers(1_000, 10**9), st.integers(0, 10**9), st.integers(0, 2**45))
def test_an_interval_fires_at_its_multiples(every_ms: int, offset_ms: int, after_ms: int) -> None:
    offset_ms %= every_ms
    found = next_interval_ms(every_ms, offset_ms, after_ms)
    assert after_ms < found <= after_ms + every_ms
    assert (found - offset_ms) % every_ms == 0
