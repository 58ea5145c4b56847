"""Metrics that components report: stored as a whole or not at all, bounded, kept for some days, and merged to steps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select

from liveness.domain.keys import WorkerKey
from liveness.server.wire import timestamp
from liveness.store.component_metrics import DELETE_BATCH, MetricType, Sample, SampleReport
from liveness.store.schema import metric_samples, metric_series
from liveness.v1 import component_metrics_service_pb2 as pb
from liveness.v1.component_metrics_service_pb2_grpc import ComponentMetricsServiceStub
from tests.integration.engine.engine import duration
from tests.integration.server.server_harness import NAMESPACE, ServerHarness, refusal

COUNTER = pb.METRIC_TYPE_COUNTER
MINUTE_MS = 60_000
NAN, INFINITE = float("nan"), float("inf")


class MetricsClient:
    def __init__(self, harness: ServerHarness) -> None:
        self.harness = harness
        self.stub: Any = ComponentMetricsServiceStub(harness.channel)

    @property
    def now_ms(self) -> int:
        return self.harness.clock.wall_ms()

    def sample(self, name: str = "depth", value: float = 1, ago_ms: int | None = None, **fields: Any) -> Any:
        sample = pb.MetricSample(name=name, value=value, **fields)
        if ago_ms is not None:
            sample.time.CopyFrom(timestamp(self.now_ms - ago_ms))
        return sample

    async def report(self, *samples: Any, worker: str = "w", namespace: str = NAMESPACE) -> int:
        request = pb.ReportMetricsRequest(namespace=namespace, worker_instance_key=worker, samples=samples)
        return int((await self.stub.ReportMetrics(request)).stored_samples)

    async def page(self, namespace: str = NAMESPACE, **fields: Any) -> pb.QueryMetricsResponse:
        answer: pb.QueryMetricsResponse = await self.stub.QueryMetrics(
            pb.QueryMetricsRequest(namespace=namespace, **fields)
        )
        return answer

    async def query(self, **fields: Any) -> Sequence[pb.MetricSeries]:
        return (await self.page(**fields)).series

    async def count(self) -> tuple[int, int]:
        """The numbers of stored series and samples."""
        queries = [select(func.count()).select_from(table) for table in (metric_series, metric_samples)]
        database = self.harness._database()
        try:
            found = await database.read(lambda connection: [connection.scalar(query) for query in queries])
            return int(found[0] or 0), int(found[1] or 0)
        finally:
            await database.close()


@pytest.fixture
def metrics(harness: ServerHarness) -> MetricsClient:
    return MetricsClient(harness)


@pytest.fixture
def sqlite_metrics(sqlite_harness: ServerHarness) -> MetricsClient:
    return MetricsClient(sqlite_harness)


def values(series: pb.MetricSeries) -> list[float]:
    return [point.value for point in series.points]


# -- reports


async def test_a_report_of_a_key_that_is_not_registered_is_stored_and_found(metrics: MetricsClient) -> None:
    labels = {"table": 'a "quoted" name', "queue": "gpu"}
    sample = metrics.sample("rows_total", 7.5, type=COUNTER, labels=labels, unit="rows", help="Rows done.")
    assert await metrics.report(sample, metrics.sample()) == 2
    depth, rows = await metrics.query(worker_instance_key="w")
    assert (depth.name, depth.type, dict(depth.labels), values(depth)) == (
        "depth",
        pb.METRIC_TYPE_GAUGE,
        {},
        [1],
    )
    assert (rows.worker_instance_key, rows.name, rows.type) == ("w", "rows_total", COUNTER)
    assert (dict(rows.labels), rows.unit, rows.help, values(rows)) == (labels, "rows", "Rows done.", [7.5])


async def test_a_repeated_report_changes_nothing_and_of_one_millisecond_the_last_sample_counts(
    metrics: MetricsClient,
) -> None:
    samples = [metrics.sample(value=1, ago_ms=5), metrics.sample(value=2, ago_ms=5)]
    assert await metrics.report(*samples) == await metrics.report(*samples) == 2
    assert await metrics.count() == (1, 1)
    assert [values(series) for series in await metrics.query()] == [[2]]


async def test_the_newest_report_says_type_unit_and_help(metrics: MetricsClient) -> None:
    await metrics.report(metrics.sample(unit="s", help="Old."))
    await metrics.report(metrics.sample(type=COUNTER, help="New."))
    [series] = await metrics.query()
    assert (series.type, series.unit, series.help) == (COUNTER, "s", "New.")


TOO_MANY_LABELS = {f"l{number}": "" for number in range(17)}
BAD_SAMPLES: dict[str, tuple[dict[str, Any], str]] = {
    "no name": ({"name": ""}, "samples[1].name must be set."),
    "a space in the name": ({"name": "a b"}, "samples[1].name must be a letter or _"),
    "a digit first": ({"name": "1a"}, "samples[1].name must be a letter or _"),
    "a line break behind the name": ({"name": "a\n"}, "samples[1].name must be a letter or _"),
    "a long name": ({"name": "a" * 201}, "at most 200 of them."),
    "NaN": ({"value": NAN}, "samples[1].value must be a number between -1e+200 and 1e+200."),
    "infinity": ({"value": INFINITE}, "samples[1].value must be a number between"),
    "minus infinity": ({"value": -INFINITE}, "samples[1].value must be a number between"),
    "a huge value": ({"value": 1.1e200}, "samples[1].value must be a number between"),
    "an unknown type": ({"type": 9}, "samples[1].type must be GAUGE or COUNTER."),
    "17 labels": ({"labels": TOO_MANY_LABELS}, "samples[1].labels must have at most 16 elements."),
    "no name of a label": ({"labels": {"": "x"}}, "a name in samples[1].labels must be set."),
    "a bad name of a label": ({"labels": {'"': "x"}}, "a name in samples[1].labels must be a letter or _"),
    "a long label": ({"labels": {"l": "é" * 128}}, "samples[1].labels[l] must be at most 255 bytes"),
    "a NUL in a label": (
        {"labels": {"l": "\0"}},
        "samples[1].labels[l] must not contain control characters.",
    ),
    "a long unit": ({"unit": "u" * 64}, "samples[1].unit must be at most 63 bytes"),
    "a long help": ({"help": "h" * 1_025}, "samples[1].help must be at most 1024 bytes"),
    "a NUL in the help": ({"help": "\0"}, "samples[1].help must not contain NUL characters."),
    "an old sample": ({"ago_ms": 3_600_001}, "samples[1].time must be at most an hour old and at most a"),
    "a future sample": ({"ago_ms": -60_001}, "samples[1].time must be at most an hour old and at most a"),
    "no time": ({"time": Timestamp(nanos=-1)}, "samples[1].time must lie in the years 1 to 9999"),
    "two types": (
        {"name": "good", "type": COUNTER},
        "samples[1].type differs from the type of another sample",
    ),
}


async def test_one_bad_sample_refuses_its_report_with_one_sentence_and_changes_nothing(
    metrics: MetricsClient,
) -> None:
    for bad, sentence in BAD_SAMPLES.values():
        refused = await refusal(metrics.report(metrics.sample("good"), metrics.sample(**bad)))
        assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
        assert sentence in refused.message
    assert await metrics.count() == (0, 0)


async def test_a_report_names_its_component_and_has_1_to_1000_samples(metrics: MetricsClient) -> None:
    messages = [
        (await refusal(call)).message
        for call in (
            metrics.report(metrics.sample(), namespace=""),
            metrics.report(metrics.sample(), worker=""),
            metrics.report(metrics.sample(), worker="\x01"),
            metrics.report(),
            metrics.report(*[metrics.sample()] * 1_001),
        )
    ]
    assert messages == [
        "namespace must be set.",
        "worker_instance_key must be set.",
        "worker_instance_key must not contain control characters.",
        "samples must have at least one element.",
        "samples must have at most 1000 elements.",
    ]
    assert await metrics.report(*(metrics.sample(value=at, ago_ms=at) for at in range(1_000))) == 1_000
    assert await metrics.count() == (1, 1_000)


async def test_limits_of_what_is_valid_are_valid(metrics: MetricsClient) -> None:
    labels = {f"{'l' * 98}{at:02}": "ü" * 127 for at in range(16)}
    largest = {"labels": labels, "unit": "u" * 63, "help": "h" * 1_024}
    samples = [
        metrics.sample("n" * 200, sign * 1e200, ago, **largest)
        for sign, ago in ((1, 3_600_000), (-1, -60_000))
    ]
    assert await metrics.report(*samples, worker="w" * 255) == 2
    end = timestamp(metrics.now_ms + 120_000)
    [series] = await metrics.query(
        end_time=end, start_time=timestamp(metrics.now_ms - 4_000_000), labels=labels
    )
    assert (dict(series.labels), values(series)) == (labels, [1e200, -1e200])


# -- limits


async def test_a_report_that_brings_too_many_series_is_refused_as_a_whole(metrics: MetricsClient) -> None:
    await metrics.harness.configure(max_metric_series_per_worker=3, max_metric_series=5)
    await metrics.report(metrics.sample("a"), metrics.sample("b"))
    refused = await refusal(metrics.report(*map(metrics.sample, "bcd")))
    assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "SERIES_QUOTA_EXCEEDED")
    assert refused.message == (
        "Component w has its 3 series of metrics, and this report brings 2 new ones; use fewer values of labels, or raise "
        "max_metric_series_per_worker."
    )
    assert await metrics.count() == (2, 2)
    assert await metrics.report(*map(metrics.sample, "abc")) == 3, "known series and one new"
    await metrics.report(*map(metrics.sample, "ab"), worker="w2")
    refused = await refusal(metrics.report(metrics.sample("a"), worker="w3"))
    assert "Namespace orders has its 5 series of metrics" in refused.message
    assert refused.message.endswith("raise max_metric_series.")
    assert await metrics.report(metrics.sample("a"), worker="w3", namespace="another") == 1


async def test_reports_that_share_a_transaction_are_admitted_one_by_one(metrics: MetricsClient) -> None:
    def report(worker: str, names: str, **limits: int) -> SampleReport:
        samples = [Sample(name, "{}", MetricType.GAUGE, "", "", metrics.now_ms, 1.0) for name in names]
        whole = {"series_max": 5, "series_per_worker_max": 3, **limits}
        return SampleReport(key=WorkerKey(NAMESPACE, worker), samples=samples, **whole)

    reports = [
        report("w1", "a"),
        report("w1", "abc"),
        report("w1", "d"),
        report("w2", "abc"),
        report("w2", "ab"),
    ]
    refusals = await metrics.harness.server.store.insert_samples(reports)
    assert [None if refusal is None else refusal.setting for refusal in refusals] == [
        None, None, "max_metric_series_per_worker", "max_metric_series", None,
    ]  # fmt: skip
    assert await metrics.count() == (5, 5)


async def test_a_namespace_that_reports_much_leaves_room_for_others(
    metrics: MetricsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("liveness.server.metrics_writer.WAITING_SAMPLES_MAX", 100)
    writer = metrics.harness.server.metrics_writer
    writer._interval_ms = 1_000
    await metrics.report(metrics.sample())  # the next transaction begins a second later
    busy = [asyncio.ensure_future(metrics.report(*[metrics.sample()] * 10)) for _ in range(8)]
    first, _ = await asyncio.wait(busy, return_when=asyncio.FIRST_COMPLETED)
    assert (await refusal(first.pop())).reason == "TOO_MANY_SAMPLES_WAITING"
    other = asyncio.ensure_future(metrics.report(*[metrics.sample()] * 20, namespace="other"))
    while not writer._waiting_of["other"]:
        await asyncio.sleep(0)
    assert writer._waiting_of[NAMESPACE] == 50
    await metrics.harness.advance(1_000)
    assert await other == 20
    await asyncio.gather(*busy, return_exceptions=True)
    assert (writer.waiting_samples, writer._waiting_of) == (0, {})


async def test_many_reports_at_once_share_few_transactions(metrics: MetricsClient) -> None:
    writer = metrics.harness.server.metrics_writer
    names = [f"w{number}" for number in range(60)]
    await asyncio.gather(*(metrics.report(metrics.sample(), worker=name) for name in names))
    assert writer.transactions < len(names) / 2
    assert {series.worker_instance_key for series in await metrics.query()} == set(names)


# -- queries


async def test_series_are_selected_by_component_name_and_all_labels(metrics: MetricsClient) -> None:
    gpu, cpu = {"queue": "gpu", "zone": "a"}, {"queue": "GPU", "zone": "a"}
    for worker in ("w1", "w2"):
        samples = [
            metrics.sample("depth", labels=gpu),
            metrics.sample("depth", labels=cpu),
            metrics.sample("age"),
        ]
        await metrics.report(*samples, worker=worker)
    await metrics.report(metrics.sample(), namespace="another")

    async def found(**fields: Any) -> list[tuple[str, str, str]]:
        return [
            (each.worker_instance_key, each.name, each.labels.get("queue", ""))
            for each in await metrics.query(**fields)
        ]

    every = [
        (worker, name, queue)
        for worker in ("w1", "w2")
        for name, queue in (("age", ""), ("depth", "gpu"), ("depth", "GPU"))
    ]
    assert await found() == every
    assert await found(worker_instance_key="w2") == every[3:]
    assert await found(name="age") == [every[0], every[3]]
    assert await found(labels={"queue": "gpu"}) == [every[1], every[4]]
    assert await found(labels={"queue": "gpu", "zone": "b"}) == []
    assert await found(labels={"que": "gpu"}) == await found(labels={"queue": 'gpu","x":"'}) == []
    assert await found(worker_instance_key="w") == []


async def test_pages_go_on_where_the_last_one_ended_though_time_goes_on(metrics: MetricsClient) -> None:
    await metrics.report(
        *(metrics.sample("depth", labels={"n": str(at)}) for at in range(5)), metrics.sample("age")
    )
    seen: list[tuple[str, str]] = []
    times = set()
    token, pages = "", 0
    while pages == 0 or token:
        page = await metrics.page(page_size=2, page_token=token)
        seen += [(each.name, each.labels.get("n", "")) for each in page.series]
        times |= {point.time.ToMilliseconds() for each in page.series for point in each.points}
        token, pages = page.next_page_token, pages + 1
        await metrics.harness.advance(MINUTE_MS + 7)
    assert len(times) == 1, "all pages have the steps of the first"
    assert seen == [("age", ""), *(("depth", str(at)) for at in range(5))]
    assert pages == 3
    token = (await metrics.page(page_size=2)).next_page_token
    refused = await refusal(metrics.page(page_size=2, page_token=token, name="depth"))
    assert refused.reason == "PAGE_TOKEN_INVALID"


BAD_QUERIES: dict[str, tuple[dict[str, Any], str]] = {
    "no namespace": ({"namespace": ""}, "namespace must be set."),
    "a bad name": ({"name": "a b"}, "name must be a letter or _"),
    "a bad label": ({"labels": {"l": "\n"}}, "labels[l] must not contain control characters."),
    "too many labels": ({"labels": TOO_MANY_LABELS}, "labels must have at most 16 elements."),
    "an empty range": (
        {"start_time": Timestamp(seconds=5), "end_time": Timestamp(seconds=5)},
        "start_time must be before end_time, which is now if it is unset.",
    ),
    "a step of nothing": ({"step": duration(0)}, "step must be more than zero"),
    "too many points": ({"step": duration(3_000)}, "step must be at least 3600 ms in this range of time"),
    "a large page": ({"page_size": 1_001}, "page_size must be 0 (for the default) to 1000."),
    "no page token": ({"page_token": "x"}, "page_token does not belong to this request"),
}


async def test_a_bad_query_is_refused_with_one_sentence(sqlite_metrics: MetricsClient) -> None:
    for fields, sentence in BAD_QUERIES.values():
        refused = await refusal(sqlite_metrics.page(**fields))
        assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
        assert sentence in refused.message


VALUES = st.floats(-1e200, 1e200) | st.integers(-10, 10).map(float)
SAMPLES = st.dictionaries(st.integers(0, 40), VALUES, min_size=5, max_size=30) | st.dictionaries(
    st.integers(0, 3_600), VALUES, min_size=1, max_size=40
)
_HARNESS = {HealthCheck.function_scoped_fixture, HealthCheck.too_slow}


@settings(max_examples=25, deadline=None, suppress_health_check=list(_HARNESS))
@given(
    given_samples=SAMPLES,
    is_counter=st.booleans(),
    start_ago=st.integers(1, 50) | st.integers(1, 3_700),
    seconds=st.integers(1, 3_700),
    step=st.none() | st.integers(4, 30) | st.integers(30, 5_000),
    number=st.integers(),
)
@example(
    given_samples={9: 5.0, 8: 1.0, 5: 3.0, 2: -4.0},
    is_counter=False,
    start_ago=9,
    seconds=9,
    step=4,
    number=1,
)
@example(
    given_samples={9: 5.0, 8: 1.0, 5: 3.0, 2: -4.0}, is_counter=True, start_ago=9, seconds=9, step=4, number=2
)
async def test_points_equal_those_that_a_brute_force_computes(
    metrics: MetricsClient,
    given_samples: dict[int, float],
    is_counter: bool,
    start_ago: int,
    seconds: int,
    step: int | None,
    number: int,
) -> None:
    worker = f"w{abs(number)}-{metrics.now_ms}"
    await metrics.harness.advance(1)
    now_ms = metrics.now_ms
    kind = COUNTER if is_counter else pb.METRIC_TYPE_GAUGE
    await metrics.report(
        *(metrics.sample(value=value, ago_ms=ago * 1_000, type=kind) for ago, value in given_samples.items()),
        worker=worker,
    )
    start_ms = now_ms - start_ago * 1_000
    end_ms = start_ms + seconds * 1_000
    asked = {} if step is None else {"step": duration(step * 1_000)}
    found = await metrics.query(
        worker_instance_key=worker, start_time=timestamp(start_ms), end_time=timestamp(end_ms), **asked
    )
    step_ms = -(-(end_ms - start_ms) // 300) if step is None else step * 1_000
    expected: dict[int, list[float]] = {}
    for ago, value in sorted(given_samples.items(), reverse=True):
        if start_ms <= (at_ms := now_ms - ago * 1_000) < end_ms:
            expected.setdefault(start_ms + (at_ms - start_ms) // step_ms * step_ms, []).append(value)
    points = [point for series in found for point in series.points]
    assert [point.time.ToMilliseconds() for point in points] == list(expected)
    assert len(points) <= 300 or step is not None
    for point, of_step in zip(points, expected.values(), strict=True):
        assert (point.min, point.max) == (min(of_step), max(of_step))
        assert point.HasField("last_sample_time") == is_counter
        if is_counter:
            assert point.value == of_step[-1]
            last_ago_ms = now_ms - point.last_sample_time.ToMilliseconds()
            assert given_samples[last_ago_ms // 1_000] == point.value
        else:
            scale = max(map(abs, of_step))
            assert point.value == pytest.approx(sum(of_step) / len(of_step), rel=1e-9, abs=1e-12 * scale)


async def test_a_page_has_no_more_points_than_its_limit(
    sqlite_metrics: MetricsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("liveness.server.component_metrics_service.POINTS_PER_PAGE_MAX", 10)
    for name in "abcde":
        await sqlite_metrics.report(*(sqlite_metrics.sample(name, ago_ms=ago * 15_000) for ago in range(4)))
    names: list[str] = []
    sizes: list[int] = []
    token = ""
    while not sizes or token:
        page = await sqlite_metrics.page(page_token=token)
        names += [series.name for series in page.series]
        sizes.append(sum(len(series.points) for series in page.series))
        token = page.next_page_token
    assert names == list("abcde")
    assert max(sizes) < 10 + 4 * 2
    assert len(sizes) > 1


# -- retention


async def test_samples_are_kept_for_the_retention_and_a_series_without_samples_is_removed(
    stopped_harness: ServerHarness,
) -> None:
    harness = await stopped_harness.start(component_metrics_retention_s=3_600)
    metrics = MetricsClient(harness)
    many = DELETE_BATCH + 10
    for begin in range(0, many, 1_000):
        await metrics.report(
            *(metrics.sample("old", ago_ms=ago) for ago in range(begin, min(begin + 1_000, many)))
        )
    await metrics.report(metrics.sample("both"))
    await harness.advance(30 * MINUTE_MS)
    await metrics.report(metrics.sample("both"), metrics.sample("new"))
    await harness.server.maintenance.apply_retention()
    assert await metrics.count() == (3, many + 3)
    await harness.advance(31 * MINUTE_MS)
    await harness.server.maintenance.apply_retention()
    assert await metrics.count() == (2, 2)
    assert {series.name for series in await metrics.query()} == {"both", "new"}
    await metrics.report(metrics.sample("old"))
    assert await metrics.count() == (3, 3)


async def test_a_database_that_is_too_large_loses_samples_before_events(
    stopped_harness: ServerHarness,
) -> None:
    harness = await stopped_harness.start(database_bytes_max=1)
    metrics = MetricsClient(harness)
    await harness.beat("w")
    await metrics.report(*(metrics.sample(ago_ms=ago) for ago in range(100)))
    await harness.server.maintenance.apply_retention()
    assert await metrics.count() == (0, 0)


# -- failures


async def test_a_stored_report_survives_a_restart(metrics: MetricsClient) -> None:
    await metrics.report(metrics.sample(value=3))
    await metrics.harness.restart()
    assert [values(series) for series in await MetricsClient(metrics.harness).query()] == [[3]]
