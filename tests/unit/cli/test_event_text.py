"""Every event there is, or ever was, is told in a sentence of its own."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from liveness.cli.durations import humanize_ms
from liveness.cli.event_text import FORMATTERS, EventTone, describe_event
from liveness.domain import events
from liveness.server.wire import event_message
from liveness.store.codec import EVENT_KINDS, LogEntry
from liveness.v1.event_pb2 import Event
from tests.unit.store.golden_files import SHARD, VERSIONS

GOLDEN = [
    pytest.param(entry, id=f"{version.name} row {entry.seq}")
    for version in VERSIONS
    for entry in version.meaning
]


def event(kind: str, data: dict[str, Any], **fields: Any) -> Event:
    return Event(type=kind, data_json=json.dumps(data), **fields)


def told(kind: str, data: dict[str, Any], **fields: Any) -> str:
    return str(describe_event(event(kind, data, **fields)))


def test_every_kind_of_event_has_words() -> None:
    kinds = {kind.__name__ for kind in get_args(events.Event)}
    assert len(kinds) > 20
    assert kinds | set(EVENT_KINDS) == set(FORMATTERS)


@pytest.mark.parametrize("entry", GOLDEN)
def test_what_any_version_wrote_is_told_in_words(entry: LogEntry) -> None:
    message = event_message(SHARD, entry)
    sentence = describe_event(message)
    assert message.data_json not in sentence.text, "told raw"
    assert sentence.subject
    assert sentence.text
    assert "{" not in str(sentence)


def test_a_death_is_told_with_its_reason() -> None:
    data = {"reason": "LEASE_EXPIRED", "detail": "no heartbeat for 30012 ms of a 30000 ms lease"}
    sentence = describe_event(event("WorkerDeactivated", data, worker_instance_key="worker-7"))
    assert str(sentence) == "worker-7 fell silent: no heartbeat for 30 s of a 30 s lease"
    assert sentence.tone is EventTone.DEATH


def test_a_death_is_told_with_what_moved_on_and_who_died_with_it() -> None:
    data = {
        "reason": "LEASE_EXPIRED",
        "detail": "no heartbeat for 30000 ms of a 30000 ms lease",
        "certificate": {"activities": 3, "company": {"same_host": 1, "same_build": 9, "same_namespace": 9}},
    }
    assert told("WorkerDeactivated", data, worker_instance_key="w") == (
        "w fell silent: no heartbeat for 30 s of a 30 s lease, 3 activities rescheduled, "
        "1 other of its host died in the same minute"
    )


@pytest.mark.parametrize(
    ("reason", "detail", "text"),
    [
        ("SHUTDOWN", "", "w said goodbye"),
        ("SHUTDOWN", "end of shift", "w said goodbye: end of shift"),
        ("FORCED", "host is gone", "w was forced out: host is gone"),
        ("DRAINED", "drained; 2 activities were left at the limit", "w was drained: 2 activities were left at the limit"),
        ("SOMETHING_NEW", "", "w left"),
    ],
)  # fmt: skip
def test_an_end_is_told_by_its_kind(reason: str, detail: str, text: str) -> None:
    data = {"reason": reason, "detail": detail}
    assert told("WorkerDeactivated", data, worker_instance_key="w") == text


def test_many_activities_are_counted_and_few_are_named() -> None:
    ids = [{"workflow_id": f"p{n}", "run_id": "-", "activity_id": "resize"} for n in range(4)]
    few = told("BindingsEnded", {"ids": ids[:2], "taken": True}, worker_instance_key="w")
    assert few == "w is told to stop p0/resize, p1/resize"
    many = told("BindingsEnded", {"ids": ids, "taken": False}, worker_instance_key="w")
    assert many == "w is through with 4 activities"


def test_a_drain_tells_its_limit_from_the_shards_own_clock() -> None:
    data = {"reason": "new build", "deadline_ms": 100_000}
    assert (
        told("DrainBegun", data, worker_instance_key="w", observed_ms=40_000)
        == "w is to finish and leave within 1 min: new build"
    )


@pytest.mark.parametrize(
    ("changed", "unset", "text"),
    [
        ({"paused": 1.0}, [], "is paused: move"),
        ({}, ["paused"], "may take new work again: move"),
        ({"cleanup_delay_ms": 600_000.0}, ["max_workers"], "changed: cleanup_delay is now 10 min; max_workers is inherited again: move"),
        ({"worker_heartbeat_rate": 0.5}, [], "changed: worker_heartbeat_rate is now 0.5: move"),
    ],
)  # fmt: skip
def test_changed_settings_are_told_as_they_are_set(
    changed: dict[str, float], unset: list[str], text: str
) -> None:
    data = {"set": changed, "unset": unset, "reason": "move"}
    assert told("ConfigChanged", data, namespace="orders") == f"namespace orders {text}"


def test_the_default_of_all_namespaces_is_named_as_such() -> None:
    data = {"set": {"paused": 1.0}, "unset": [], "reason": ""}
    assert told("ConfigChanged", data) == "the default of all namespaces changed: paused is now 1"


def test_what_others_write_is_cut_where_nobody_reads_on() -> None:
    data = {"reason": "FORCED", "detail": "x" * 100_000}
    assert len(told("WorkerDeactivated", data, worker_instance_key="w")) < 400


@pytest.mark.parametrize(
    ("kind", "data_json"),
    [
        ("WorkerPromoted", '{"rank":3}'),
        ("WorkerRegistered", '{"granted_ms":"soon"}'),
        ("WorkerPaused", "[]"),
        ("WorkerPaused", "no json"),
        ("BindingsEnded", '{"ids":[[]],"taken":true}'),
    ],
)
def test_what_another_version_means_is_told_as_it_came(kind: str, data_json: str) -> None:
    sentence = describe_event(Event(type=kind, worker_instance_key="w", data_json=data_json))
    assert sentence.subject == "w"
    assert data_json in sentence.text


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (0, "0 ms"),
        (250, "250 ms"),
        (1_000, "1 s"),
        (30_049, "30 s"),
        (30_060, "30.1 s"),
        (59_999, "60 s"),
        (60_000, "1 min"),
        (90_500, "1 min 30 s"),
        (5_400_000, "1 h 30 min"),
        (3_601_000, "1 h"),
        (30 * 86_400_000, "30 d"),
        (-1_500, "-1.5 s"),
    ],
)
def test_durations_are_told_in_two_units_at_most(ms: int, words: str) -> None:
    assert humanize_ms(ms) == words
