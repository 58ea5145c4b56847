"""Every kind of event of every version is described in a sentence."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from liveness.cli.durations import humanize_ms
from liveness.cli.event_text import FORMATTERS, EventTone, describe_event
from liveness.domain import events
from liveness.server.wire import event_message
from liveness.store.codec import EVENT_KINDS
from liveness.v1.event_pb2 import Event
from tests.unit.store.golden_files import SHARD, VERSIONS, Version


def event(kind: str, data: dict[str, Any], **fields: Any) -> Event:
    return Event(type=kind, data_json=json.dumps(data), **fields)


def describe(kind: str, data: dict[str, Any], **fields: Any) -> str:
    return str(describe_event(event(kind, data, **fields)))


def test_every_kind_of_event_has_a_formatter() -> None:
    kinds = {kind.__name__ for kind in get_args(events.Event)}
    assert len(kinds) > 20
    assert kinds | set(EVENT_KINDS) == set(FORMATTERS)


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_golden_events_of_every_version_are_described_in_words(version: Version) -> None:
    for entry in version.meaning:
        message = event_message(SHARD, entry)
        sentence = describe_event(message)
        assert message.data_json not in sentence.text, (
            f"row {entry.seq}: the description contains the raw data"
        )
        assert sentence.subject, f"row {entry.seq}"
        assert sentence.text, f"row {entry.seq}"
        assert "{" not in str(sentence), f"row {entry.seq}"


def test_a_death_is_described_with_its_reason() -> None:
    data = {"reason": "LEASE_EXPIRED", "detail": "no heartbeat for 30012 ms of a 30000 ms lease"}
    sentence = describe_event(event("WorkerDeactivated", data, worker_instance_key="worker-7"))
    assert str(sentence) == "worker-7 fell silent: no heartbeat for 30 s of a 30 s lease"
    assert sentence.tone is EventTone.DEATH


def test_a_death_is_described_with_reschedules_and_concurrent_deaths() -> None:
    data = {
        "reason": "LEASE_EXPIRED",
        "detail": "no heartbeat for 30000 ms of a 30000 ms lease",
        "certificate": {"activities": 3, "company": {"same_host": 1, "same_build": 9, "same_namespace": 9}},
    }
    assert describe("WorkerDeactivated", data, worker_instance_key="w") == (
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
def test_each_reason_of_a_deactivation_has_its_own_text(reason: str, detail: str, text: str) -> None:
    data = {"reason": reason, "detail": detail}
    assert describe("WorkerDeactivated", data, worker_instance_key="w") == text


def test_few_activities_are_named_and_many_are_counted() -> None:
    ids = [{"workflow_id": f"p{n}", "run_id": "-", "activity_id": "resize"} for n in range(4)]
    few = describe("BindingsEnded", {"ids": ids[:2], "taken": True}, worker_instance_key="w")
    assert few == "w is told to stop p0/resize, p1/resize"
    many = describe("BindingsEnded", {"ids": ids, "taken": False}, worker_instance_key="w")
    assert many == "w is done with 4 activities"


def test_the_deadline_of_a_drain_is_relative_to_the_observed_clock() -> None:
    data = {"reason": "new build", "deadline_ms": 100_000}
    assert (
        describe("DrainBegun", data, worker_instance_key="w", observed_ms=40_000)
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
def test_changed_settings_are_described_in_the_form_users_type(
    changed: dict[str, float], unset: list[str], text: str
) -> None:
    data = {"set": changed, "unset": unset, "reason": "move"}
    assert describe("ConfigChanged", data, namespace="orders") == f"namespace orders {text}"


def test_a_change_of_the_default_policy_is_described_as_such() -> None:
    data = {"set": {"paused": 1.0}, "unset": [], "reason": ""}
    assert describe("ConfigChanged", data) == "the default of all namespaces changed: paused is now 1"


def test_long_texts_of_clients_are_truncated() -> None:
    data = {"reason": "FORCED", "detail": "x" * 100_000}
    assert len(describe("WorkerDeactivated", data, worker_instance_key="w")) < 400


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
def test_an_unknown_or_malformed_event_is_shown_raw(kind: str, data_json: str) -> None:
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
def test_durations_are_described_in_at_most_two_units(ms: int, words: str) -> None:
    assert humanize_ms(ms) == words
