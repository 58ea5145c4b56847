"""The encoding of names in subjects: unique, and always one token."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from liveness.integrations.relay.subjects import (
    NAME_BYTES_MAX,
    EventSubject,
    RescheduleSubject,
    event_subject,
    events_subject,
    name_of,
    reschedules_subject,
    subject_of,
    token_of,
)

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=NAME_BYTES_MAX).filter(
    lambda name: len(name.encode()) <= NAME_BYTES_MAX
)
shards = st.integers(0, 4_095)


@given(names)
@example("")
@example("a.b")
@example("*")
@example(">")
@example(" ")
@example("=")
@example("=none")
@example("\r\n")
@example("ä" * 127)
def test_a_name_encodes_to_one_token_and_decodes_again(name: str) -> None:
    token = token_of(name)
    assert re.fullmatch(r"[A-Za-z0-9_=-]+", token)
    assert name_of(token) == name


@given(names, names)
@example("", "=")
@example("a.b", "a=2Eb")
def test_no_two_names_share_a_token(one: str, other: str) -> None:
    assert (token_of(one) == token_of(other)) == (one == other)


@given(names, names, shards)
def test_the_subject_of_a_reschedule_round_trips(namespace: str, task_queue: str, shard: int) -> None:
    subject = reschedules_subject(namespace, task_queue, shard)
    assert subject_of(subject) == RescheduleSubject(namespace, task_queue, shard)
    assert len(subject) < 2_000, "the limit of a NATS line is twice as long"


@given(st.none() | names, shards)
def test_the_subject_of_an_event_round_trips(namespace: str | None, shard: int) -> None:
    assert subject_of(event_subject(namespace, shard)) == EventSubject(namespace, shard)


@given(names)
def test_no_namespace_collides_with_the_subject_without_namespace(namespace: str) -> None:
    assert event_subject(namespace, 0) != event_subject(None, 0)


def test_unset_parts_of_a_subject_filter_are_wildcards() -> None:
    assert reschedules_subject("orders", "resize") == "liveness.reschedules.orders.resize.*"
    assert reschedules_subject() == "liveness.reschedules.*.*.*"
    assert events_subject("a.b") == "liveness.events.a=2Eb.*"
    assert events_subject(shard=3) == "liveness.events.*.3"


@given(st.text(max_size=100))
@example("liveness.events.a=2e.1")  # the canonical form is =2E
@example("liveness.events.a=41.1")  # the canonical form is A
@example("liveness.events.=C3.1")  # not UTF-8
@example("liveness.events.a.01")
@example("liveness.events.a.-1")
@example("liveness.reschedules.a.1")
def test_any_other_subject_is_refused_or_round_trips(subject: str) -> None:
    try:
        parsed = subject_of(subject)
    except ValueError:
        return
    again = event_subject(*parsed) if isinstance(parsed, EventSubject) else reschedules_subject(*parsed)
    assert again == subject


def test_a_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 255 bytes"):
        token_of("a" * 256)
