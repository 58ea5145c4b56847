"""The totals of many worlds: printed, stored as JSON, and rendered into docs/simulation.md."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from liveness.version import RELEASE
from tests.simulation.plan import ACTS, STARVE
from tests.simulation.rules import RULES
from tests.simulation.sometimes import COINCIDENCES, SITUATIONS
from tests.simulation.world import Outcome

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results" / "simulation.json"
PAGE = ROOT / "docs" / "simulation.md"
BEGIN, END = "<!-- result: make sim ARGS=--write -->", "<!-- end of result -->"


@dataclass
class RunTotals:
    seeds: int = 0
    large: int = 0
    """Worlds with 200 workers or more."""
    steps: int = 0
    virtual_s: float = 0.0
    messages: int = 0
    transactions: int = 0
    rows: int = 0
    sometimes: Counter[str] = field(default_factory=Counter)
    seeds_with: Counter[str] = field(default_factory=Counter)
    acts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    violations: dict[int, str] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.large += outcome.plan.workers >= 200
        self.steps += outcome.steps
        self.virtual_s += outcome.virtual_s
        self.messages += outcome.messages
        self.transactions += outcome.transactions
        self.rows += outcome.rows
        self.sometimes += outcome.sometimes
        self.seeds_with.update(outcome.sometimes.keys())
        self.acts += outcome.acts
        self.faults += outcome.faults
        self.answers += outcome.answers
        if outcome.violation:
            self.violations[outcome.seed] = outcome.violation

    def rare(self, often: int) -> list[str]:
        return [
            name for name in SITUATIONS if self.sometimes[name] < min(often, COINCIDENCES.get(name, often))
        ]


def as_json(total: RunTotals, first: int, took_s: float) -> dict[str, Any]:
    return {
        "code": _code(),
        "first_seed": first,
        "seeds": total.seeds,
        "seeds_with_200_workers_or_more": total.large,
        "steps": total.steps,
        "virtual_hours": round(total.virtual_s / 3_600, 2),
        "messages": total.messages,
        "transactions": total.transactions,
        "log_rows": total.rows,
        "seconds": round(took_s, 1),
        "rules": len(RULES),
        "acts": {act: total.acts[act] for act in (*ACTS, STARVE)},
        "faults": dict(sorted(total.faults.items())),
        "answers": dict(sorted(total.answers.items())),
        "situations": {
            name: {"times": total.sometimes[name], "seeds": total.seeds_with[name]} for name in SITUATIONS
        },
        "rules_broken": {str(seed): text for seed, text in total.violations.items()},
    }


def _code() -> str:
    """Return the version, and the commit if the tree is a git checkout."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        found = ""
    return f"{RELEASE} {found}".strip()


def store_result(result: Mapping[str, Any]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    page = PAGE.read_text()
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{rendered(result)}\n{END}{after}")


def rendered(result: Mapping[str, Any]) -> str:
    lines = [
        "",
        f"Seeds {result['first_seed']:,} to {result['first_seed'] + result['seeds'] - 1:,}, version {result['code']}:",
        "",
        "| | |",
        "|---|---:|",
        f"| worlds | {result['seeds']:,} |",
        f"| of these with 200 to 400 workers | {result['seeds_with_200_workers_or_more']:,} |",
        f"| virtual hours | {result['virtual_hours']:,} |",
        f"| event loop steps | {result['steps']:,} |",
        f"| messages | {result['messages']:,} |",
        f"| transactions | {result['transactions']:,} |",
        f"| log rows, each checked | {result['log_rows']:,} |",
        f"| seconds | {result['seconds']:,} |",
        f"| rules | {result['rules']:,} |",
        f"| **worlds that broke a rule** | **{len(result['rules_broken']):,}** |",
        "",
        "| fault | times |",
        "|---|---:|",
        *(f"| {act} | {times:,} |" for act, times in result["acts"].items()),
        "",
        "| fault of a message or transaction | times |",
        "|---|---:|",
        *(f"| {fault} | {times:,} |" for fault, times in result["faults"].items()),
        "",
        "| situation | times | worlds |",
        "|---|---:|---:|",
        *(
            f"| {name} | {met['times']:,} | {met['seeds']:,} |"
            for name, met in result["situations"].items()
        ),
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def printed(total: RunTotals, took_s: float) -> str:
    lines = [
        f"seeds              {total.seeds:>12,}   {total.large} with 200 workers or more",
        f"steps              {total.steps:>12,}   {total.steps / max(took_s, 0.001):,.0f} a second",
        f"virtual hours      {total.virtual_s / 3_600:>12,.1f}   in {took_s:,.0f} s",
        f"messages           {total.messages:>12,}",
        f"transactions       {total.transactions:>12,}   {total.rows:,} log rows",
        "",
        "faults",
        *(f"  {act:<62}{total.acts[act]:>9,}" for act in ACTS),
        "",
        "faults of messages and transactions",
        *(f"  {fault:<62}{times:>9,}" for fault, times in sorted(total.faults.items())),
        "",
        f"{'situations':<64}{'times':>9}{'seeds':>9}",
        *(
            f"  {name:<62}{total.sometimes[name]:>9,}{total.seeds_with[name]:>9,}"
            for name in SITUATIONS
        ),
        "",
        f"worlds that broke a rule: {len(total.violations)}",
        *(f"  seed {seed}: {text}" for seed, text in total.violations.items()),
    ]  # fmt: skip
    return "\n".join(lines)
