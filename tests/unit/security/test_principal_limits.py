"""Limits of principals refuse what is above them, and recover with time."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from liveness.clock import ManualClock
from liveness.domain.errors import RateLimited, TooManyConnections, TooManyStreams
from liveness.security.principal_limits import (
    BYTES_BURST_MS,
    CONNECTION_MS,
    PRINCIPALS_MAX,
    PrincipalLimits,
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def admitted(limits: PrincipalLimits, name: str, calls: int, size: int = 0) -> int:
    count = 0
    for _ in range(calls):
        try:
            limits.admit(name, size)
        except RateLimited:
            continue
        count += 1
    return count


def test_calls_come_in_a_burst_and_then_at_the_rate(clock: ManualClock) -> None:
    limits = PrincipalLimits(clock, calls_per_s=100, calls_burst=50)
    assert admitted(limits, "ann", 200) == 50
    assert limits.refused["calls"] == 150
    assert admitted(limits, "bob", 10) == 10, "principals do not share a limit"
    clock.move(100)
    assert admitted(limits, "ann", 200) == 10
    clock.move(10_000)
    assert admitted(limits, "ann", 200) == 50


def test_a_refusal_says_when_to_try_again(clock: ManualClock) -> None:
    limits = PrincipalLimits(clock, calls_per_s=1, calls_burst=1)
    limits.admit("ann", 0)
    with pytest.raises(RateLimited) as refused:
        limits.admit("ann", 0)
    assert str(refused.value) == "Too many calls of ann; try again in 1001 ms."
    clock.move(refused.value.retry_after_ms)
    limits.admit("ann", 0)


def test_bytes_are_limited_and_one_large_call_is_admitted(clock: ManualClock) -> None:
    limits = PrincipalLimits(clock, bytes_per_s=1_000)
    limits.admit("ann", 10_000)
    assert admitted(limits, "ann", 5, 1) == 0
    assert limits.refused["bytes"] == 5
    clock.move(10_000 - BYTES_BURST_MS)
    assert admitted(limits, "ann", 1, 1) == 1


def test_streams_are_limited_while_they_are_open(clock: ManualClock) -> None:
    limits = PrincipalLimits(clock, streams_max=2)
    with ExitStack() as streams:
        streams.enter_context(limits.open_stream("ann"))
        streams.enter_context(limits.open_stream("ann"))
        with pytest.raises(TooManyStreams):
            streams.enter_context(limits.open_stream("ann"))
        streams.enter_context(limits.open_stream("bob"))
    with limits.open_stream("ann"):
        assert limits.refused["streams"] == 1


def test_connections_are_limited_while_calls_come_on_them(clock: ManualClock) -> None:
    limits = PrincipalLimits(clock, connections_max=2)
    limits.admit("ann", 0, "ipv4:10.0.0.1:1")
    limits.admit("ann", 0, "ipv4:10.0.0.1:2")
    with pytest.raises(TooManyConnections) as refused:
        limits.admit("ann", 0, "ipv4:10.0.0.1:3")
    assert "ann" in str(refused.value)
    limits.admit("ann", 0, "ipv4:10.0.0.1:1")
    limits.admit("bob", 0, "ipv4:10.0.0.1:3")
    assert limits.refused["connections"] == 1
    clock.move(CONNECTION_MS - 1)
    limits.admit("ann", 0, "ipv4:10.0.0.1:2")
    clock.move(1)
    limits.admit("ann", 0, "ipv4:10.0.0.1:3")
    with pytest.raises(TooManyConnections):
        limits.admit("ann", 0, "ipv4:10.0.0.1:1")


def test_a_call_that_is_refused_makes_no_connection_count(clock: ManualClock) -> None:
    limits = PrincipalLimits(clock, calls_per_s=1, calls_burst=1, connections_max=1)
    limits.admit("ann", 0, "a")
    for connection in ("a", "b"):
        with pytest.raises(RateLimited):
            limits.admit("ann", 0, connection)
    clock.move(CONNECTION_MS)
    limits.admit("ann", 0, "b")


def test_no_limit_is_no_limit(clock: ManualClock) -> None:
    limits = PrincipalLimits(clock)
    assert admitted(limits, "ann", 10_000, 10**9) == 10_000


def test_memory_is_bounded_however_many_principals_there_are(clock: ManualClock) -> None:
    limits = PrincipalLimits(clock, calls_per_s=1, calls_burst=10)
    for number in range(2 * PRINCIPALS_MAX):
        admitted(limits, f"p-{number}", 1)
    assert len(limits._by_name) <= PRINCIPALS_MAX + 1
    clock.move(60_000)
    limits.admit("new", 0)
    assert len(limits._by_name) == 1
