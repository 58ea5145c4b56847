"""docs/troubleshooting.md names alerts, metrics, labels, log events, commands and settings that exist."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from liveness.cli import main
from liveness.telemetry.metrics import METRICS
from liveness.telemetry.process_metrics import FRONTEND_METRICS
from tests.integration.deploy.test_monitoring import RULES

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
CODE = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL))
QUOTED = re.findall(r'(?<!see )"([a-zT][^"\n]+)"(?!,? (?:above|below))', PAGE)
NOT_LISTED = {"LivenessNotScraped", "LivenessAbsent", "LivenessHeartbeatsRefused", "LivenessReschedulesFail"}
"""Two that are about Prometheus, and two whose symptom is found under the name of their metric."""
SOURCES = "\n".join(
    path.read_text(encoding="utf-8")
    for folder in ("liveness", "tasks")
    for path in (ROOT / folder).rglob("*.py")
)


def test_every_alert_rule_has_a_symptom() -> None:
    assert {rule["alert"] for rule in RULES} - set(CODE) == NOT_LISTED


def test_alerts_exist() -> None:
    named = {name for name in CODE if name.startswith("Liveness")}
    assert named
    assert named <= {rule["alert"] for rule in RULES}


def test_metrics_and_their_labels_exist() -> None:
    labels = {metric.name: getattr(metric, "labels", ()) for metric in (*METRICS, *FRONTEND_METRICS)}
    named = {name for name in CODE if name.startswith("liveness_")}
    assert named
    assert named <= labels.keys()
    for name, label in re.findall(r"`(liveness_\w+)` by `(\w+)`", PAGE):
        assert label in labels[name], name


@pytest.mark.parametrize("line", [code for code in CODE if code.startswith("liveness ")])
def test_commands_exist(line: str) -> None:
    command: click.Command | None = main
    for word in line.split()[1:]:
        if not isinstance(command, click.Group):
            break
        command = command.get_command(click.Context(command), word)
        assert command is not None, line
    assert command is not None
    options = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in line.split() if word.startswith("--")} <= options


@pytest.mark.parametrize("event", [text for text in QUOTED if text not in ("The database", "Nodes")])
def test_events_of_the_log_and_errors_exist(event: str) -> None:
    assert event in SOURCES, event
