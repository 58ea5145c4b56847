"""Each alert has a runbook, with what to look at and what to do; there is none for an alert that does not exist."""

from __future__ import annotations

import re

import yaml

from tests.unit.architecture.source_files import ROOT

RULES = ROOT / "deploy" / "prometheus" / "liveness.rules.yml"
RUNBOOKS = ROOT / "docs" / "runbooks.md"


def alerts() -> dict[str, str]:
    """The severity of each alert."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    return {rule["alert"]: rule["labels"]["severity"] for rule in rules}


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    sections = re.split(r"(?m)^## ", RUNBOOKS.read_text())[1:]
    runbooks = {section.partition("\n")[0]: section for section in sections}
    assert list(runbooks) == list(alerts())
    for name, severity in alerts().items():
        assert f"*{severity}*" in runbooks[name], name
        for part in ("**Means**: ", "**Look at**\n\n- ", "**Do**\n\n- "):
            assert part in runbooks[name], (name, part)
