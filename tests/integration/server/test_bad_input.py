"""Invalid requests get a clear refusal and change nothing; no request is answered with INTERNAL or UNKNOWN."""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable
from typing import Any

import grpc
import msgspec
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from liveness.v1 import admin_pb2, service_pb2, worker_pb2
from tests.integration.engine.engine import activity
from tests.integration.server.server_harness import (
    NAMESPACE,
    REGISTERED,
    RENEWED,
    ServerHarness,
    config,
    heartbeat,
    refusal,
    unpack_status,
)

INT64_MAX = 2**63 - 1
BOGUS: Any = 99
METHODS = {
    f"/{service.full_name}/{method.name}": method
    for file in (service_pb2, admin_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
EXPECTED_CODES = (
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.NOT_FOUND,
)


def as_fields(name: str, value: str) -> dict[str, Any]:
    return {name: value}


async def code_of(call: Awaitable[Any]) -> grpc.StatusCode:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def raw(harness: ServerHarness, path: str, payload: bytes) -> grpc.StatusCode:
    """Send the raw bytes and return the status code."""
    if METHODS[path].server_streaming:
        stream = harness.channel.unary_stream(path)(payload)
        try:
            await stream.read()
        except grpc.aio.AioRpcError as error:
            return error.code()
        stream.cancel()
        return grpc.StatusCode.OK
    return await code_of(harness.channel.unary_unary(path)(payload))


DURATIONS = {
    "zero": (Duration(), "must be more than zero; leave it unset for the default"),
    "negative": (Duration(seconds=-1), "must not be negative"),
    "negative nanos": (Duration(nanos=-1), "must not be negative"),
    "overflowing": (Duration(seconds=INT64_MAX), "must be at most 100 years"),
    "underflowing": (Duration(seconds=-(2**63)), "must not be negative"),
    "nanos of a second": (Duration(nanos=1_000_000_000), "is malformed"),
    "most nanos": (Duration(nanos=2**31 - 1), "is malformed"),
    "mixed signs": (Duration(seconds=1, nanos=-1), "is malformed"),
    "mixed signs the other way": (Duration(seconds=-1, nanos=1), "is malformed"),
}


@pytest.mark.parametrize("name", DURATIONS)
async def test_an_invalid_lease_duration_is_refused_with_its_field_and_rule(
    sqlite_harness: ServerHarness, name: str
) -> None:
    value, rule = DURATIONS[name]
    refused = await refusal(sqlite_harness.beat(lease_duration=value))
    assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    [(field, description)] = refused.violations
    assert field == refused.fields["field"] == "heartbeat.lease_duration"
    assert description == refused.fields["rule"]
    assert description.startswith(rule)
    assert await sqlite_harness.count() == {}


async def test_the_longest_and_the_shortest_duration_are_clamped(sqlite_harness: ServerHarness) -> None:
    longest = await sqlite_harness.beat("a", lease_duration=Duration(seconds=3_153_600_000))
    assert longest.granted_lease_duration == Duration(seconds=3_600)
    shortest = await sqlite_harness.beat("b", lease_duration=Duration(nanos=1))
    assert shortest.granted_lease_duration == Duration(seconds=1)


IDENTIFIERS = {
    "empty": ("", "must be set"),
    "256 bytes": ("x" * 256, "must be at most 255 bytes"),
    "multi-byte past the limit": ("é" * 128, "must be at most 255 bytes"),
    "ten thousand bytes": ("x" * 10_000, "must be at most 255 bytes"),
    "newline": ("a\nb", "must not contain control characters"),
    "NUL": ("a\0b", "must not contain control characters"),
    "delete": ("a\x7fb", "must not contain control characters"),
    "C1 control": ("a\x85b", "must not contain control characters"),
}


@pytest.mark.parametrize("name", IDENTIFIERS)
async def test_an_invalid_identifier_is_refused_in_every_field(
    sqlite_harness: ServerHarness, name: str
) -> None:
    harness = sqlite_harness
    await harness.beat("known", session_id="s")
    before = await harness.dump("shards", "audit")
    value, rule = IDENTIFIERS[name]
    ref: dict[str, Any] = {"workflow_id": "f", "run_id": "r", "activity_id": "a", "task_queue": "q"}
    bad_refs = {
        part: worker_pb2.ActivityRef(**{**ref, part: value})
        for part in (ref if value else ["workflow_id", "run_id", "activity_id"])
    }
    calls: dict[str, Any] = {
        "namespace": harness.beat(namespace=value),
        "heartbeat.worker_instance_key": harness.beat(value),
        "worker_instance_key": harness.describe(value),
        "namespace ": harness.describe(namespace=value),
        "worker_instance_key ": harness.shut_down(value),
        "worker_instance_key  ": harness.expire(value),
        "worker_instance_key   ": harness.history(value),
        "namespace  ": harness.listed(value),
        "namespace   ": harness.count(value),
    }
    for part, bad in bad_refs.items():
        calls[f"heartbeat.bound_activities.{part}"] = harness.beat("known", bound_activities=[bad])
        calls[f"heartbeat.unbound_activities.{part}"] = harness.beat("known", unbound_activities=[bad])
    if value:
        calls["heartbeat.session_id"] = harness.beat("known", session_id=value)
        calls["session_id"] = harness.shut_down("known", session_id=value)
        calls["filter.key_prefix"] = harness.listed(filter=service_pb2.WorkerFilter(key_prefix=value))
        calls["filter.host_name"] = harness.count(filter=service_pb2.WorkerFilter(host_name=value))
        calls["namespace    "] = harness.config(value)
        calls["namespace     "] = harness.configure(value, max_workers=3)
        calls["namespace      "] = harness.tasks(namespace=value)
        for field in ("worker_identity", "task_queue", "build_id", "sdk_name", "host_name", "process_id"):
            calls[f"heartbeat.{field}"] = harness.beat("known", **as_fields(field, value))
    for field, call in calls.items():
        refused = await refusal(call)
        assert refused.code is grpc.StatusCode.INVALID_ARGUMENT, field
        [(named, description)] = refused.violations
        assert named == field.strip()
        assert description.startswith(rule)
    assert await harness.dump("shards", "audit") == before


VALID = [
    "x" * 255,
    "é" * 127,
    "👩‍🚀",
    "مرحبا",
    "\u202eabc",
    "a b",
    "a/b:c|d",
    "\ufeff",
    "\U0010ffff",
    "'; --",
    "%_",
]


async def test_a_valid_identifier_is_served_unchanged(harness: ServerHarness) -> None:
    for name in VALID:
        registered = await harness.beat(name, namespace=name, session_id=name, task_queue=name)
        assert registered.outcome == REGISTERED
        worker = await harness.describe(name, name)
        assert (worker.worker_instance_key, worker.session_id, worker.task_queue) == (name, name, name)
        listed = await harness.listed(name, filter=service_pb2.WorkerFilter(key_prefix=name, task_queue=name))
        assert [worker.worker_instance_key for worker in listed.workers] == [name]
    await harness.restart()
    for name in VALID:
        assert (await harness.beat(name, namespace=name, session_id=name)).outcome == RENEWED
        assert len((await harness.history(name, name)).events) == 1


async def test_names_are_compared_byte_for_byte(harness: ServerHarness) -> None:
    names = ["e\u0301", "\u00e9", "E\u0301", "w", "W", "w ", "\uff57"]
    for name in names:
        assert (await harness.beat(name)).outcome == REGISTERED
    listed = [worker.worker_instance_key for worker in (await harness.listed()).workers]
    assert listed == sorted(names, key=str.encode)


async def test_sizes_beyond_their_limits_are_refused_and_change_nothing(harness: ServerHarness) -> None:
    await harness.beat("w", bound_activities=[activity("kept")])
    before = await harness.dump("shards", "audit")
    changes = [activity(str(number)) for number in range(1_001)]
    refused = {
        "metadata": harness.beat(labels={"a": "x" * 16_384}),
        "last error": harness.beat(last_error="x" * 16_385),
        "capabilities": harness.beat(capabilities=["x" * 10_000, "y" * 10_000]),
        "token": harness.beat(bound_activities=[activity("a", token=b"x" * 2_049)]),
        "201 changes": harness.beat(bound_activities=changes[:100], unbound_activities=changes[:101]),
        "1001 in full": harness.beat(bound_activities=changes, full_bindings=True),
        "1001 heartbeats": harness.liveness.RecordWorkerHeartbeats(
            service_pb2.RecordWorkerHeartbeatsRequest(
                namespace=NAMESPACE, heartbeats=[heartbeat(str(n)) for n in range(1_001)]
            )
        ),
        "reason": harness.shut_down(reason="x" * 4_097),
        "page size": harness.listed(page_size=1_001),
        "negative page size": harness.listed(page_size=-1),
        "sequence": harness.beat(sequence=2**63),
        "successes": harness.beat(successes=2**64 - 1),
        "errors": harness.beat(errors=2**64 - 1),
        "attempt": harness.beat(bound_activities=[activity("a", attempt=-1)]),
        "status": harness.beat(status=99),
        "negative status": harness.beat(status=-1),
        "start time": harness.beat(start_time=Timestamp(seconds=INT64_MAX)),
        "start time nanos": harness.beat(start_time=Timestamp(nanos=-1)),
        "state": harness.listed(filter=service_pb2.WorkerFilter(states=[BOGUS])),
        "task state": harness.tasks(99),
        "no heartbeat": harness.liveness.RecordWorkerHeartbeat(
            service_pb2.RecordWorkerHeartbeatRequest(namespace=NAMESPACE)
        ),
        "unset": harness.configure(unset=("max_hats",)),
        "unset at length": harness.configure(unset=("x" * 10_000,)),
        "set and unset": harness.configure(max_workers=1, unset=("max_workers",)),
    }
    for name, call in refused.items():
        answer = await refusal(call)
        assert (answer.code, answer.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD"), name
        assert answer.violations, name
    assert await harness.dump("shards", "audit") == before


async def test_sizes_at_their_limits_are_served(harness: ServerHarness) -> None:
    await harness.beat("meta", labels={"a": "x" * 16_383})
    await harness.beat("token", bound_activities=[activity("a", token=b"\0" * 2_048)])
    await harness.beat("changes", bound_activities=[activity(str(n)) for n in range(200)])
    await harness.beat("full", bound_activities=[activity(str(n)) for n in range(1_000)], full_bindings=True)
    await harness.beat("numbers", session_id="s", sequence=INT64_MAX, successes=2**40, errors=2**40)
    await harness.beat(
        "text", current_job="\0\n\x7f", last_error="a\0b", labels={"\0": "\0"}, capabilities=["\0"]
    )
    assert len(await harness.batch(*(heartbeat(str(n)) for n in range(1_000)))) == 1_000
    await harness.restart()
    worker = await harness.describe("text")
    assert (worker.current_job, worker.last_error, dict(worker.labels)) == ("\0\n\x7f", "a\0b", {"\0": "\0"})
    assert list((await harness.describe("token")).bound_activities) == [activity("a", token=b"\0" * 2_048)]
    assert (await refusal(harness.beat("numbers", session_id="s", sequence=5))).reason == "STALE_HEARTBEAT"


async def test_the_first_and_last_timestamps_are_accepted_as_start_times(harness: ServerHarness) -> None:
    first, last = Timestamp(seconds=-62_135_596_800), Timestamp(seconds=253_402_300_799, nanos=999_999_999)
    await harness.beat("first", start_time=first)
    await harness.beat("last", start_time=last)
    await harness.restart()
    assert (await harness.describe("first")).start_time == first
    assert (await harness.describe("last")).start_time == last


async def test_a_message_above_the_size_limit_is_refused(sqlite_harness: ServerHarness) -> None:
    refused = await refusal(sqlite_harness.beat(current_job="x" * 17_000_000))
    assert refused.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await sqlite_harness.beat()).outcome == REGISTERED


@pytest.mark.parametrize("path", METHODS)
async def test_bytes_that_do_not_parse_are_refused(sqlite_harness: ServerHarness, path: str) -> None:
    before = await sqlite_harness.dump("shards", "audit")
    first_string = b"\x0a\x02\xff\xfe"  # field 1 with bytes that are not UTF-8
    for payload in (b"\xff", b"\x0a\x05ab", b"\x00", b"\x0b", b"\x0f\x01", b"\xff" * 1_000, b"\x0a" * 1_001):
        assert await raw(sqlite_harness, path, payload) is grpc.StatusCode.INVALID_ARGUMENT
    if METHODS[path].input_type.fields and METHODS[path].input_type.fields_by_number[1].type == 9:
        assert await raw(sqlite_harness, path, first_string) is grpc.StatusCode.INVALID_ARGUMENT
    assert await sqlite_harness.dump("shards", "audit") == before


async def test_a_malformed_message_is_refused_with_its_reason(sqlite_harness: ServerHarness) -> None:
    call = sqlite_harness.channel.unary_unary("/liveness.v1.LivenessService/RecordWorkerHeartbeat")(b"\xff")
    refused = await refusal(call)
    assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_REQUEST")


async def test_every_call_answers_an_empty_message(sqlite_harness: ServerHarness) -> None:
    for path in METHODS:
        assert await raw(sqlite_harness, path, b"") in EXPECTED_CODES


async def test_an_unknown_method_is_unimplemented(sqlite_harness: ServerHarness) -> None:
    refused = await refusal(sqlite_harness.channel.unary_unary("/liveness.v1.LivenessService/Nothing")(b""))
    assert refused.code is grpc.StatusCode.UNIMPLEMENTED


async def test_random_bytes_are_never_answered_with_internal_or_unknown(
    sqlite_harness: ServerHarness,
) -> None:
    """Every call gets random bytes and valid messages with changed bytes."""
    harness = sqlite_harness
    await harness.beat("w", session_id="s", sequence=1, bound_activities=[activity("a")])
    seed = service_pb2.RecordWorkerHeartbeatRequest(
        namespace=NAMESPACE,
        heartbeat=heartbeat(
            "w", session_id="s", sequence=2, lease_ms=5_000, bound_activities=[activity("b")]
        ),
    ).SerializeToString()
    mutated = st.tuples(st.integers(0, len(seed) - 1), st.integers(0, 255), st.integers(0, len(seed))).map(
        lambda cut: (seed[: cut[0]] + bytes([cut[1]]) + seed[cut[0] + 1 :])[: cut[2] or None]
    )
    payloads = st.one_of(st.binary(max_size=200), mutated)
    inputs: list[tuple[str, bytes]] = []

    @settings(max_examples=500, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(sorted(METHODS)), payloads)
    def collect(path: str, payload: bytes) -> None:
        inputs.append((path, payload))

    collect()
    for start in range(0, len(inputs), 50):
        chunk = inputs[start : start + 50]
        codes = await asyncio.gather(*(raw(harness, path, payload) for path, payload in chunk))
        for (path, payload), code in zip(chunk, codes, strict=True):
            assert code in EXPECTED_CODES, (path, payload, code)
    assert (await harness.beat("still alive")).outcome == REGISTERED


def forge(token: str, position: object) -> str:
    """Replace the position in a token; the format of tokens is not secret."""
    listing, _ = msgspec.json.decode(urlsafe_b64decode(token))
    return urlsafe_b64encode(msgspec.json.encode([listing, position])).decode()


async def test_forged_tokens_are_refused_or_harmless(harness: ServerHarness) -> None:
    for number in range(3):
        await harness.beat(f"w{number}", bound_activities=[activity(f"{number}")])
        await harness.shut_down(f"w{number}")
    workers = (await harness.listed(page_size=1)).next_page_token
    events = (await harness.history("w0", page_size=1)).next_page_token
    task = (await harness.admin.ListTasks(admin_pb2.ListTasksRequest(page_size=1))).next_page_token
    assert workers
    assert events
    assert task
    positions: list[Any] = [2**70, -(2**70), -1, "x", 1.5, None, [1], {}, "\0", "a" * 100_000, 10**4_000]
    for position in positions:
        answers = [
            harness.listed(page_size=1, page_token=forge(workers, position)),
            harness.history("w0", page_size=1, page_token=forge(events, position)),
            harness.admin.ListTasks(
                admin_pb2.ListTasksRequest(page_size=1, page_token=forge(task, position))
            ),
        ]
        codes = [await code_of(answer) for answer in answers]
        assert set(codes) <= {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT}, position


NESTED = urlsafe_b64encode(b'["AAAA",' + b"[" * 40_000).decode()
TOKENS = ["x", "====", "é", "bnVsbA==", "W10=", NESTED, "W" * 40_001, "eyJhIjoxfQ==", "\x00"]


@pytest.mark.parametrize("token", TOKENS, ids=lambda token: token[:8])
async def test_an_invalid_token_is_refused(sqlite_harness: ServerHarness, token: str) -> None:
    await sqlite_harness.beat()
    calls = {
        "PAGE_TOKEN_INVALID": [
            sqlite_harness.listed(page_token=token),
            sqlite_harness.history(page_token=token),
            sqlite_harness.tasks(page_token=token),
        ],
        "RESUME_TOKEN_INVALID": [
            sqlite_harness.liveness.WatchEvents(service_pb2.WatchEventsRequest(resume_token=token)).read()
        ],
    }
    for reason, answers in calls.items():
        for answer in answers:
            refused = await refusal(answer)
            assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, reason)


CONFIGS: dict[str, dict[str, Any]] = {
    "minimum above maximum": {"min_lease_ms": 7_200_000},
    "default above maximum": {"max_lease_ms": 10_000},
    "default below minimum": {"default_lease_ms": 1},
    "no lease at all": {"default_lease_ms": 0},
    "negative workers": {"max_workers": -1},
    "no bindings": {"max_bindings_per_worker": 0},
    "more bindings than a heartbeat can name": {"max_bindings_per_worker": 1_001},
    "more workers than can be counted": {"max_workers": INT64_MAX},
    "infinite rate": {"worker_heartbeat_rate": float("inf")},
    "rate that is no number": {"worker_heartbeat_rate": float("nan")},
    "negative rate": {"namespace_heartbeat_rate": -0.5},
}


async def test_inconsistent_settings_are_refused_and_change_nothing(harness: ServerHarness) -> None:
    before, stored = await harness.config(), await harness.dump("shards", "audit")
    for name, values in CONFIGS.items():
        refused = await refusal(harness.configure(**values))
        assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD"), name
        assert refused.violations, name
    assert await harness.config() == before
    assert await harness.dump("shards", "audit") == stored


@pytest.mark.parametrize("duration", [Duration(seconds=-1), Duration(seconds=INT64_MAX), Duration(nanos=-5)])
async def test_a_setting_with_an_invalid_duration_is_refused(
    sqlite_harness: ServerHarness, duration: Duration
) -> None:
    request = admin_pb2.UpdateConfigRequest(namespace=NAMESPACE)
    request.set.cleanup_delay.CopyFrom(duration)
    refused = await refusal(sqlite_harness.admin.UpdateConfig(request))
    assert refused.fields["field"] == "set.cleanup_delay"


async def test_the_largest_settings_survive_a_restart(harness: ServerHarness) -> None:
    await harness.configure(max_workers=2**53, max_bindings_per_worker=1_000, worker_heartbeat_rate=1.7e308)
    await harness.beat()
    before = await harness.config()
    await harness.restart()
    assert await harness.config() == before


@pytest.mark.parametrize("rate", [5e-324, 1e-300, 1e-9])
async def test_a_tiny_rate_gives_a_retry_hint_without_overflow(
    sqlite_harness: ServerHarness, rate: float
) -> None:
    await sqlite_harness.configure(worker_heartbeat_rate=rate)
    assert (await sqlite_harness.beat()).outcome == REGISTERED
    refused = await refusal(sqlite_harness.beat())
    assert refused.reason == "RATE_LIMITED"
    assert refused.retry_ms


async def test_an_invalid_key_is_refused_as_invalid_even_with_a_rate_limit(
    sqlite_harness: ServerHarness,
) -> None:
    await sqlite_harness.configure(worker_heartbeat_rate=0.5)
    for _ in range(3):
        assert (await refusal(sqlite_harness.beat("x" * 100_000))).reason == "INVALID_FIELD"


async def test_unknown_task_ids_are_not_found(harness: ServerHarness) -> None:
    for task_id in (0, 1, INT64_MAX, 2**63, 2**64 - 1):
        for call in (
            harness.admin.RetryTask(admin_pb2.RetryTaskRequest(task_id=task_id)),
            harness.admin.DiscardTask(admin_pb2.DiscardTaskRequest(task_id=task_id)),
        ):
            refused = await refusal(call)
            assert (refused.code, refused.reason) == (grpc.StatusCode.NOT_FOUND, "TASK_NOT_FOUND")


async def test_watching_a_worker_needs_its_namespace(sqlite_harness: ServerHarness) -> None:
    stream = sqlite_harness.liveness.WatchEvents(service_pb2.WatchEventsRequest(worker_instance_key="w"))
    refused = await refusal(stream.read())
    assert refused.fields["field"] == "namespace"


async def test_an_invalid_heartbeat_in_a_batch_gets_the_same_refusal_as_a_single_one(
    sqlite_harness: ServerHarness,
) -> None:
    [item] = await sqlite_harness.batch(heartbeat(lease_duration=Duration(seconds=-1)))
    refused = unpack_status(item.status)
    assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert refused.violations == [("heartbeat.lease_duration", "must not be negative")]


async def test_every_field_of_the_namespace_configuration_can_be_set(harness: ServerHarness) -> None:
    values: dict[str, Any] = {
        "default_lease_ms": 2_500,
        "min_lease_ms": 1_500,
        "max_lease_ms": 60_001,
        "cleanup_delay_ms": 0,
        "tombstone_retention_ms": 0,
        "event_retention_ms": 0,
        "max_workers": 0,
        "max_bindings_per_worker": 7,
        "namespace_heartbeat_rate": 0.0,
        "worker_heartbeat_rate": 0.25,
        "worker_sessions_per_minute": 0.5,
        "max_metric_series": 7,
        "max_metric_series_per_worker": 5,
        "max_open_activities": 0,
        "max_open_activity_bytes": 0,
        "max_progress_units": 0,
        "max_schedules": 0,
        "max_concurrency_limits": 0,
        "max_worker_deaths": 0,
        "activity_retention_ms": 0,
        "dispatch_timeout_ms": 250,
        "paused": 0,
        "storm_min_workers": 5,
        "storm_share": 0.25,
        "storm_hold_ms": 0,
        "storm_pace": 0,
        "binding_retention_ms": 0,
        "unpolled_alert_ms": 0,
        "waiting_alert_ms": 0,
    }
    answer = await harness.configure(**values)
    assert answer.effective == answer.overrides == config(**values)
    await harness.restart()
    assert (await harness.config()).overrides == config(**values)
