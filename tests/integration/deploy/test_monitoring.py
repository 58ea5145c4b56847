"""Alert rules and the dashboard use metrics and labels that a live server exports."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import grpc
import pytest
import yaml

from liveness.cli import main
from liveness.config.frontend_settings import FrontendSettings
from liveness.domain.policy import DEFAULT_POLICY
from liveness.frontend.app import Frontend
from liveness.telemetry.metric_types import HistogramMetric, LabelledHistogramMetric
from liveness.telemetry.metrics import METRICS
from liveness.telemetry.process_metrics import FRONTEND_METRICS
from liveness.v1 import admin_pb2, schedule_service_pb2
from liveness.v1.admin_pb2_grpc import AdminServiceStub
from liveness.v1.schedule_service_pb2_grpc import ScheduleServiceStub
from tests.integration.deploy.manifests import DEPLOY
from tests.integration.deploy.promql import Expression, Matcher, Selector, read
from tests.integration.engine.engine import activity
from tests.integration.server.component_client import CRASHED, ComponentClient
from tests.integration.server.server_harness import NAMESPACE, ServerHarness, refusal
from tests.integration.telemetry.exposition import Exposition

RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus" / "liveness.rules.yml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "liveness.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
QUERIES = [
    pytest.param(target["expr"], id=f"{panel['title']}: {target['refId']}")
    for panel in PANELS
    for target in panel.get("targets", ())
]
PROMETHEUS_LABELS = {"job", "instance"}
"""Labels that Prometheus adds to everything it scrapes."""


class RefusingSink:
    """A sink that refuses every reschedule."""

    async def deliver(self, key: Any, activity: Any, task: Any) -> None:
        raise RuntimeError("no")


@pytest.fixture(scope="module")
async def exposition(tmp_path_factory: pytest.TempPathFactory) -> Exposition:
    """The metrics of a server on which every labelled event has happened, and of a frontend before it."""
    folder: Path = tmp_path_factory.mktemp("live")
    harness = await ServerHarness(f"sqlite:///{folder}/liveness.db").start(
        takeover_grace_ms=0, sink=RefusingSink(), task_attempts_max=2, cluster_listen="127.0.0.1:0"
    )
    frontend_settings = FrontendSettings(listen="127.0.0.1:0", nodes=(harness.server.cluster_address,))
    async with Frontend(frontend_settings) as frontend:
        async with grpc.aio.insecure_channel(frontend.address) as channel:
            listing: Any = AdminServiceStub(channel).ListShards
            await listing(admin_pb2.ListShardsRequest(), wait_for_ready=True)
        frontend_text, _ = frontend.metrics()
    await harness.beat("dies", lease_ms=1_000, bound_activities=[activity("a")])
    await refusal(harness.beat(""))
    supervisor = ComponentClient.of(harness)
    await supervisor.start()
    await supervisor.report(CRASHED)
    schedule = schedule_service_pb2.ScheduleSpec(
        activity=schedule_service_pb2.ScheduledActivity(task_queue="queue"), cron="@daily"
    )
    schedules: Any = ScheduleServiceStub(harness.channel)
    of = {"namespace": NAMESPACE, "schedule_id": "s"}
    await schedules.CreateSchedule(schedule_service_pb2.CreateScheduleRequest(**of, spec=schedule))
    await schedules.TriggerSchedule(schedule_service_pb2.TriggerScheduleRequest(**of))
    await harness.advance(1_250)
    await harness.advance(3_000)
    await harness.server.maintenance.record_size()
    harness.clock.jump_wall(3_600_000)  # a growth needs some time
    await harness.server.take_sample()
    text, _ = harness.server.metrics()
    await harness.stop()
    exposition = Exposition(frontend_text)
    for name, family in Exposition(text).families.items():
        if family.samples:
            exposition.families[name] = family
    return exposition


def labels_of(exposition: Exposition, selector: Selector) -> set[str]:
    """Return the labels of the selector's metric."""
    if selector.metric == "up":  # a metric of Prometheus itself
        return set(PROMETHEUS_LABELS)
    labels = exposition.labels()
    assert selector.metric in labels, f"no server exports {selector.metric}"
    return labels[selector.metric] | PROMETHEUS_LABELS


def check(expression: Expression, exposition: Exposition) -> None:
    assert expression.selectors
    for selector in expression.selectors:
        labels = labels_of(exposition, selector)
        assert expression.groupings <= labels, selector.metric
        values: dict[str, set[str]] = {}
        for sample in exposition.samples:
            if sample.name == selector.metric:
                for name, value in sample.labels.items():
                    values.setdefault(name, set()).add(value)
        for matcher in selector.matchers:
            assert matcher.label in labels, f"{selector.metric} has no label {matcher.label}"
            if matcher.label in PROMETHEUS_LABELS or matcher.value.startswith("$"):
                continue
            for value in matcher.value.split("|") if matcher.operator == "=~" else [matcher.value]:
                assert value in values[matcher.label], f"{selector.metric} never has {matcher.label}={value}"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
async def test_alert_rules_use_existing_metrics_and_labels(
    rule: dict[str, Any], exposition: Exposition
) -> None:
    check(read(rule["expr"]), exposition)


@pytest.mark.parametrize("query", QUERIES)
async def test_dashboard_panels_use_existing_metrics_and_labels(query: str, exposition: Exposition) -> None:
    check(read(query), exposition)


async def test_dashboard_variables_use_existing_metrics_and_labels(exposition: Exposition) -> None:
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert variables.keys() == {"datasource", "job", "namespace"}
    for name in ("job", "namespace"):
        [(expression, label)] = re.findall(r"label_values\((.*), (\w+)\)", variables[name]["definition"])
        [selector] = read(expression).selectors
        assert label in labels_of(exposition, selector)


def test_the_dashboard_shows_every_metric() -> None:
    used = {
        selector.metric
        for panel in PANELS
        for target in panel.get("targets", ())
        for selector in read(target["expr"]).selectors
    }
    for metric in {*METRICS, *FRONTEND_METRICS}:
        names = {metric.name}
        if isinstance(metric, HistogramMetric | LabelledHistogramMetric):
            names = {f"{metric.name}_{end}" for end in ("bucket", "sum", "count")}
        assert names & used or metric.name == "liveness_build_info", metric.name


def test_the_dashboard_can_be_imported_into_any_grafana() -> None:
    """It names no specific data source, and its panels do not overlap."""
    assert DASHBOARD["uid"]
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        grid = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not cells & taken, panel["title"]
        assert grid["x"] + grid["w"] <= 24
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_rule_has_a_severity_and_a_description(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    annotations = rule["annotations"]
    assert annotations["summary"]
    assert len(annotations["description"]) > 60
    # A summary can only use labels that the expression keeps.
    named = set(re.findall(r"\$labels\.(\w+)", annotations["summary"]))
    assert named <= read(rule["expr"]).groupings | PROMETHEUS_LABELS


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_commands_in_alert_descriptions_exist(rule: dict[str, Any]) -> None:
    for line in re.findall(r"`liveness ([a-z -]+)`", rule["annotations"]["description"]):
        command: click.Command | None = main
        for name in line.partition(" -")[0].split():
            assert isinstance(command, click.Group)
            command = command.get_command(click.Context(command), name)
            assert command is not None, line


def test_alerts_named_in_descriptions_exist() -> None:
    names = {rule["alert"] for rule in RULES}
    assert len(names) == len(RULES)
    for rule in RULES:
        assert set(re.findall(r"Liveness[A-Z]\w+", rule["annotations"]["description"])) <= names


def test_the_storm_alert_uses_the_thresholds_of_the_server() -> None:
    [storm] = [rule for rule in RULES if rule["alert"] == "LivenessStorm"]
    assert f">= {DEFAULT_POLICY.storm_min_workers}" in storm["expr"]
    assert f"> {DEFAULT_POLICY.storm_share:g} * (" in storm["expr"]
    assert "[1m]" in storm["expr"]


def test_the_alert_for_waiting_work_uses_the_limit_of_the_server() -> None:
    [rule] = [rule for rule in RULES if rule["alert"] == "LivenessWorkWaits"]
    assert rule["expr"].endswith(f"> {DEFAULT_POLICY.waiting_alert_ms // 1_000}")


def test_promql_expressions_are_parsed() -> None:
    read_back = read(
        'sum by (job, le) (rate(a_bucket{job=~"$job",x="1,}"}[5m])) > 0.3 * (max(b{}) + c) and on (job) absent(d) == 0'
    )
    assert [selector.metric for selector in read_back.selectors] == ["a_bucket", "b", "c", "d"]
    assert read_back.selectors[0].matchers == (Matcher("job", "=~", "$job"), Matcher("x", "=", "1,}"))
    assert read_back.groupings == {"job", "le"}
