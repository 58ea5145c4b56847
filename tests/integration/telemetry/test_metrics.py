"""The Prometheus metrics: values, stable names, and a bounded number of series."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics

from liveness.bridges.temporal.statistics import METRICS as BRIDGE_METRICS
from liveness.telemetry.counters import NAMESPACES_MAX, OTHER
from liveness.telemetry.metric_types import (
    CounterMetric,
    GaugeMetric,
    HistogramMetric,
    LabelledHistogramMetric,
    Metric,
)
from liveness.telemetry.metrics import METRICS
from liveness.telemetry.process_metrics import FRONTEND_METRICS
from liveness.v1 import schedule_service_pb2, service_pb2
from liveness.v1.schedule_service_pb2_grpc import ScheduleServiceStub
from tests.integration.engine.engine import activity
from tests.integration.server.activity_client import ActivityClient
from tests.integration.server.component_client import (
    CRASHED,
    STARTING,
    STOPPED,
    STOPPING,
    ComponentClient,
    timestamp,
)
from tests.integration.server.registry_client import RegistryClient
from tests.integration.server.server_harness import NAMESPACE, SHARDS, ServerHarness, heartbeat, refusal
from tests.integration.store.faulty_store import Fault
from tests.integration.telemetry.exposition import Exposition

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "metrics.md"
KINDS = {
    CounterMetric: "counter",
    GaugeMetric: "gauge",
    HistogramMetric: "histogram",
    LabelledHistogramMetric: "histogram",
}
ALL_METRICS: tuple[Metric[Any], ...] = tuple(dict.fromkeys((*METRICS, *FRONTEND_METRICS, *BRIDGE_METRICS)))


def exposition_of(harness: ServerHarness) -> Exposition:
    text, _ = harness.server.metrics()
    return Exposition(text)


def labels_of(metric: Metric[Any]) -> tuple[str, ...]:
    return () if isinstance(metric, HistogramMetric) else metric.labels


async def test_worker_events_are_counted(harness: ServerHarness) -> None:
    refs = [activity("a"), activity("b")]
    await harness.beat("dies", session_id="s", lease_ms=1_000, bound_activities=refs)
    await harness.batch(heartbeat("leaves"), heartbeat("stays", session_id="old", lease_ms=60_000))
    await harness.beat("stays", session_id="new", lease_ms=60_000)
    await refusal(harness.beat("stays", session_id="old"))
    await harness.shut_down("leaves")
    await harness.advance(1_250)
    await harness.beat("dies", session_id="s", lease_ms=60_000)
    await harness.configure(cleanup_delay_ms=1_000)
    await harness.beat("cleaned", lease_ms=60_000)
    await harness.shut_down("cleaned")
    await harness.advance(1_250)
    now = exposition_of(harness)
    of = {"namespace": NAMESPACE}
    assert now.value("liveness_heartbeats_total", **of) == 7
    assert now.value("liveness_heartbeats_refused_total", reason="SESSION_SUPERSEDED", **of) == 1
    assert now.value("liveness_heartbeat_duration_seconds_count") == 6
    assert now.value("liveness_registrations_total", **of) == 4
    assert now.value("liveness_session_replacements_total", **of) == 1
    assert now.value("liveness_deactivations_total", reason="LEASE_EXPIRED", **of) == 1
    assert now.value("liveness_deactivations_total", reason="SHUTDOWN", **of) == 2
    assert now.value("liveness_deactivations_total", reason="DISCONNECTED", **of) == 0
    assert now.value("liveness_resurrections_total", **of) == 1
    assert now.value("liveness_false_deaths_total", **of) == 1
    assert now.value("liveness_cleanups_total", **of) == 1
    assert now.value("liveness_workers", state="ACTIVE", **of) == 2
    assert now.value("liveness_workers", state="INACTIVE", **of) == 1
    assert now.value("liveness_workers", state="CLEANED_UP", **of) == 1
    assert now.value("liveness_expiry_lateness_seconds_count") == 1
    assert now.value("liveness_expiry_lateness_seconds_bucket", le="0.01") == 1
    assert now.value("liveness_reschedules_total", **of) == 2
    assert now.value("liveness_reschedule_attempts_total", outcome="DONE", via="matching", **of) == 2
    assert now.value("liveness_reschedule_duration_seconds_count") == 2


async def test_dead_workers_and_waiting_activities_are_counted(harness: ServerHarness) -> None:
    client = ActivityClient(harness)
    await harness.configure(unpolled_alert_ms=5_000)
    await harness.batch(
        heartbeat("dies", lease_ms=1_000), heartbeat("leaves"), heartbeat("stays", lease_ms=60_000)
    )
    await harness.shut_down("leaves")
    for number in range(3):
        await client.schedule(f"a{number}")
    await client.schedule("other", namespace="without-workers")
    await harness.advance(6_000)
    await harness.server.take_sample()
    now = exposition_of(harness)
    of = {"namespace": NAMESPACE}
    assert now.value("liveness_dead_workers", **of) == 1
    assert now.value("liveness_workers", state="INACTIVE", **of) == 2
    assert now.value("liveness_available_activities", **of) == 3
    assert now.value("liveness_unpolled_activities", **of) == 3
    assert now.value("liveness_available_oldest_seconds", **of) == 6
    # A namespace without workers has no label of its own, and its limit is the built-in one.
    assert now.value("liveness_available_activities", namespace=OTHER) == 1
    assert now.value("liveness_unpolled_activities", namespace=OTHER) == 0
    assert now.value("liveness_available_oldest_seconds", namespace=OTHER) == 6


async def test_registered_components_are_counted_by_kind_and_status(harness: ServerHarness) -> None:
    registry = RegistryClient(harness.channel)
    harness.lift_rate_limits()
    await registry.register("broker:a", interval_ms=10_000)
    await registry.register("broker:b", status="busy")
    await registry.register("cache:c")
    await registry.deregister("cache:c")
    await harness.beat("broker:plain")
    await harness.advance(20_500)
    await harness.server.take_sample()
    now = exposition_of(harness)
    counts = {
        (sample.labels["kind"], sample.labels["status"]): sample.value
        for sample in now.families["liveness_registry_entries"].samples
        if sample.labels["namespace"] == NAMESPACE and sample.value
    }
    assert counts == {("broker", "ready"): 1, ("broker", "_other"): 1, ("_other", "offline"): 1}
    stale = [
        sample.value
        for sample in now.families["liveness_registry_stale_entries"].samples
        if sample.labels["namespace"] == NAMESPACE
    ]
    assert stale == [1]


async def test_calls_are_counted_by_method_and_code(harness: ServerHarness) -> None:
    await harness.beat("w")
    await harness.beat("w")
    await refusal(harness.describe("nobody"))
    stream = harness.liveness.WatchEvents(service_pb2.WatchEventsRequest(resume_token="no token"))
    await refusal(stream.read())
    now = exposition_of(harness)
    heartbeats = {"method": "LivenessService/RecordWorkerHeartbeat"}
    assert now.value("liveness_rpcs_total", code="OK", **heartbeats) == 2
    assert now.value("liveness_rpcs_total", code="UNAVAILABLE", **heartbeats) == 0
    assert now.value("liveness_rpc_duration_seconds_count", **heartbeats) == 2
    described = {"method": "LivenessService/DescribeWorker"}
    assert now.value("liveness_rpcs_total", code="NOT_FOUND", **described) == 1
    assert now.value("liveness_rpc_duration_seconds_count", **described) == 1
    watched = {"method": "LivenessService/WatchEvents"}
    assert now.value("liveness_rpcs_total", code="INVALID_ARGUMENT", **watched) == 1
    assert now.value("liveness_rpc_duration_seconds_count", **watched) == 0, "streams have no duration"
    methods = {sample.labels["method"] for sample in now.samples if sample.name == "liveness_rpcs_total"}
    assert methods == {heartbeats["method"], described["method"], watched["method"]}, "only those called"


async def test_a_call_that_the_client_gives_up_counts_as_cancelled(harness: ServerHarness) -> None:
    stream = harness.liveness.WatchEvents(service_pb2.WatchEventsRequest())
    await stream.read()
    stream.cancel()
    method = {"method": "LivenessService/WatchEvents"}
    async with asyncio.timeout(30):
        while ("liveness_rpcs_total", frozenset({**method, "code": "CANCELLED"}.items())) not in (
            exposition_of(harness).series()
        ):
            await asyncio.sleep(0.01)


async def test_failed_commits_are_counted_by_kind(harness: ServerHarness) -> None:
    await harness.restart(faulty=True)
    assert harness.store is not None
    for fault in (Fault.REJECTED, Fault.UNKNOWN_LOST, Fault.UNKNOWN_DONE):
        harness.store.faults.append(fault)
        await refusal(harness.beat("w"))
        async with asyncio.timeout(30):
            while len(harness.server.node.shards()) < SHARDS:
                harness.clock.move(100)
                await asyncio.sleep(0)
    now = exposition_of(harness)
    assert now.value("liveness_commit_failures_total", kind="rejected") == 1
    assert now.value("liveness_commit_failures_total", kind="unknown") == 2
    assert now.value("liveness_commit_failures_total", kind="lost") == 0
    failed = {"method": "LivenessService/RecordWorkerHeartbeat", "code": "UNAVAILABLE"}
    assert now.value("liveness_rpcs_total", **failed) == 3


async def test_commits_and_shards_are_counted(harness: ServerHarness) -> None:
    before = exposition_of(harness)
    await harness.batch(*(heartbeat(f"w{number}") for number in range(50)))
    await harness.batch(*(heartbeat(f"w{number}") for number in range(50)))
    after = exposition_of(harness)

    def grown(name: str) -> float:
        return after.value(name) - before.value(name)

    assert grown("liveness_commit_events_sum") == 50
    assert grown("liveness_commit_renewals_sum") == 50
    assert grown("liveness_commit_duration_seconds_count") == grown("liveness_commit_shards_count") >= 2
    assert grown("liveness_commit_duration_seconds_sum") > 0
    assert after.value("liveness_commit_shards_bucket", le="+Inf") == after.value(
        "liveness_commit_shards_count"
    )
    assert after.value("liveness_shards") == after.value("liveness_shards_serving") == SHARDS
    assert after.value("liveness_shards_taken_total") == SHARDS


async def test_process_metrics_are_exported(harness: ServerHarness) -> None:
    now = exposition_of(harness)
    assert now.value("process_resident_memory_bytes") > 0
    assert now.value("process_cpu_seconds_total") > 0


async def test_the_number_of_series_does_not_grow_with_workers(harness: ServerHarness) -> None:
    """It does not grow with task queues, hosts, builds, sessions or activities either."""
    await harness.configure(storm_hold_ms=0)  # expiries must not be held

    async def register_and_expire(*numbers: int) -> None:
        beats = [
            heartbeat(
                f"worker-{number}",
                session_id=f"session-{number}",
                lease_ms=1_000,
                task_queue=f"queue-{number}",
                host_name=f"host-{number}",
                build_id=f"build-{number}",
                worker_identity=f"identity-{number}",
                bound_activities=[activity(f"a{number}", task_queue=f"queue-{number}")],
            )
            for number in numbers
        ]
        for start in range(0, len(beats), 500):
            await harness.batch(*beats[start : start + 500])
        await refusal(harness.beat("", namespace=NAMESPACE))
        await harness.advance(1_250)

    await register_and_expire(0)
    before = exposition_of(harness).series()
    await register_and_expire(*range(1, 3_000))
    after = exposition_of(harness)
    assert after.series() == before
    assert after.value("liveness_registrations_total", namespace=NAMESPACE) == 3_000
    assert after.value("liveness_reschedule_attempts_total", namespace=NAMESPACE, outcome="DONE", via="matching") == 3_000  # fmt: skip


async def test_the_number_of_series_is_bounded_by_a_hundred_namespaces(harness: ServerHarness) -> None:
    for number in range(NAMESPACES_MAX):
        await harness.beat("w", namespace=f"n{number}")
    before = exposition_of(harness).series()
    for number in range(NAMESPACES_MAX, NAMESPACES_MAX + 30):
        await harness.beat("w", namespace=f"n{number}")
    after = exposition_of(harness)
    assert after.series() == before
    assert after.value("liveness_workers", namespace=OTHER, state="ACTIVE") == 30
    assert after.value("liveness_heartbeats_total", namespace=OTHER) == 30
    assert after.value("liveness_heartbeats_total", namespace="n0") == 1


async def test_refused_heartbeats_of_new_namespaces_create_no_series(harness: ServerHarness) -> None:
    await harness.configure(namespace="", max_workers=0)
    await refusal(harness.beat("w", namespace="first"))
    before = exposition_of(harness).series()
    for number in range(20):
        await refusal(harness.beat("w", namespace=f"made-up-{number}"))
    assert exposition_of(harness).series() == before


async def test_two_servers_in_one_process_count_separately(harness: ServerHarness, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = await ServerHarness(f"sqlite:///{tmp_path}/other/liveness.db").start()
    try:
        await harness.beat("w")
        assert exposition_of(harness).value("liveness_registrations_total", namespace=NAMESPACE) == 1
        assert exposition_of(other).value("liveness_registrations_total", namespace=OTHER) == 0
    finally:
        await other.stop()


async def test_the_open_metrics_format_is_served_on_request(harness: ServerHarness) -> None:
    await harness.beat("w")
    text, kind = harness.server.metrics("application/openmetrics-text; version=1.0.0,text/plain;q=0.5")
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    families = {family.name for family in open_metrics(text.decode())}
    assert "liveness_heartbeats" in families
    plain, kind = harness.server.metrics("text/html")
    assert kind.startswith("text/plain; version=0.0.4")
    assert Exposition(plain).families.keys() >= {"liveness_heartbeats"}


async def test_components_are_counted_by_status_with_their_restarts_and_crashes(
    harness: ServerHarness,
) -> None:
    supervisor = ComponentClient.of(harness)
    await supervisor.supervise()
    for index in range(3):
        await supervisor.start(index, session_id=f"p{index}")

    async def values(end: str) -> dict[str, float]:
        """By status or group, else by namespace; without those that are 0."""
        await harness.server.take_sample()
        return {
            sample.labels.get("status")
            or sample.labels.get("group")
            or sample.labels["namespace"]: sample.value
            for sample in exposition_of(harness).samples
            if sample.name == f"liveness_component{end}" and sample.value
        }

    assert await values("s") == {"HEALTHY": 3}
    assert await values("_last_crash_age_seconds") == {}
    assert await values("_group_size") == {"images": 3}
    assert await values("_group_crashed") == {}
    await supervisor.report(CRASHED, 0, "p0")
    restarted = timestamp(harness.clock.wall_ms())
    await supervisor.beat(supervisor.id(0), "again")
    await supervisor.report(STARTING, 0, "again", restart_count=1, restart_times=[restarted])
    await supervisor.report(CRASHED, 1, "p1")
    await harness.advance(30_000)
    await supervisor.report(STOPPING, 2, "p2")
    await supervisor.report(STOPPED, 2, "p2", wanted=False)
    assert await values("s") == {"STARTING": 1, "CRASHED": 1, "STOPPED": 1}
    assert await values("_restarts_total") == {"orders": 1}
    assert await values("_crashes_total") == {"orders": 2}
    assert await values("_recent_restarts") == {"orders": 1}
    assert await values("_last_crash_age_seconds") == {"orders": 30}
    assert await values("_group_size") == await values("_group_crashed") == {"images": 2}, (
        "all that shall run crashed together"
    )
    await harness.advance(300_000)
    assert await values("_recent_restarts") == await values("_group_crashed") == {}
    assert await values("_last_crash_age_seconds") == {"orders": 330}


async def test_every_metric_of_the_catalogue_is_exported_with_its_help_and_labels(
    harness: ServerHarness,
) -> None:
    refs = [activity("a")]
    await harness.beat("w", lease_ms=1_000, bound_activities=refs)
    await refusal(harness.beat(""))
    supervisor = ComponentClient.of(harness)
    await supervisor.start()
    await supervisor.report(CRASHED)
    schedule = schedule_service_pb2.ScheduleSpec(
        activity=schedule_service_pb2.ScheduledActivity(task_queue="queue"), cron="@daily"
    )
    schedules: Any = ScheduleServiceStub(harness.channel)
    name = {"namespace": NAMESPACE, "schedule_id": "s"}
    await schedules.CreateSchedule(schedule_service_pb2.CreateScheduleRequest(**name, spec=schedule))
    await schedules.TriggerSchedule(schedule_service_pb2.TriggerScheduleRequest(**name))
    await harness.advance(1_250)
    await harness.server.take_sample()
    now = exposition_of(harness)
    for metric in METRICS:
        family = now.families[metric.name.removesuffix("_total")]
        assert family.documentation == metric.help
        assert family.type == KINDS[type(metric)]
        if metric.name.startswith("liveness_forwarded_"):
            continue  # a node on SQLite forwards nothing: see the tests of the frontend
        labels = set(labels_of(metric)) | ({"le"} if KINDS[type(metric)] == "histogram" else set())
        assert {name for sample in family.samples for name in sample.labels} == labels, metric.name


@pytest.mark.parametrize("metric", ALL_METRICS, ids=lambda metric: metric.name)
def test_metric_names_follow_the_conventions(metric: Metric[Any]) -> None:
    assert metric.name.startswith("liveness_")
    assert metric.name.endswith("_total") == isinstance(metric, CounterMetric)
    assert metric.help.endswith(".")
    assert not {"worker", "task_queue", "host", "build", "session", "activity"} & set(labels_of(metric))


def test_the_documentation_lists_every_metric() -> None:
    rows = [
        f"| `{metric.name}` | {KINDS[type(metric)]} | {' '.join(f'`{name}`' for name in labels_of(metric))} | {metric.help} |"
        for metric in ALL_METRICS
    ]
    listed = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `liveness_")]
    assert listed == rows, "docs/metrics.md should contain:\n" + "\n".join(rows)


async def test_namespaces_that_were_created_first_do_not_hide_those_that_are_in_use(
    harness: ServerHarness,
) -> None:
    for number in range(NAMESPACES_MAX):
        await harness.beat("w", namespace=f"made-up-{number}", lease_ms=3_600_000)
    for _ in range(5):
        await harness.beat("w", lease_ms=3_600_000)
        await harness.advance(30_000)
    found = exposition_of(harness)
    assert found.value("liveness_workers", namespace=NAMESPACE, state="ACTIVE") == 1
    assert found.value("liveness_heartbeats_total", namespace=NAMESPACE) > 0
    assert len({sample.labels["namespace"] for sample in found.samples if "namespace" in sample.labels}) == (
        NAMESPACES_MAX + 1
    )
