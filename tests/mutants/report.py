"""The results as a table for people, as JSON, and as docs/mutants.md."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tests.mutants.bug import Bug
from tests.mutants.mutation_run import Result, Run, Verdict

_INTRODUCTION = """\
# Planted bugs

A test suite that has never failed proves little. So `tests/mutants/bugs.toml` holds {count} bugs as data; each is a small
change to one file that breaks one of the service's invariants on purpose. `make mutants` plants the bugs one at a time in
copies of the tree and runs the harnesses that should catch them, cheapest first.

A bug counts as caught only if a test *fails* with it and passes without it. A copy that cannot be imported or a fixture that
breaks does not count. Processes that tests start run the copy, too. `make test` checks that every bug still applies to the
code.

**{caught} of {count} are caught**, on CPython {python}. `make mutants ARGS="--write"` stores each result in
`docs/results/mutants.json` and writes this page from it; with names of bugs, it runs only those again. The seconds were
measured on a shared machine and include the harnesses that did not catch the bug.

"""


def one_line(result: Result, width: int) -> Text:
    bug = result.bug
    text = Text(f"{bug.invariant:>2}  {bug.name:<{width}}  ")
    if result.noticed:
        first = result.noticed[0]
        text.append("caught  ", style="green").append(f"{result.seconds:5.1f} s  {_test(first)}")
    else:
        text.append("MISSED  ", style="bold red").append(f"{result.seconds:5.1f} s  {_verdicts(result)}")
    return text


def show(console: Console, invariants: Mapping[int, str], results: Sequence[Result]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("bug", "invariant", "caught by", "test", "s"):
        table.add_column(column, overflow="fold", justify="right" if column == "s" else "left")
    for result in results:
        runs = result.noticed
        table.add_row(
            result.bug.name,
            f"{result.bug.invariant} {invariants[result.bug.invariant]}",
            ", ".join(_harness(run) for run in runs) if runs else Text("MISSED", style="bold red"),
            "\n".join(_test(run) for run in runs) if runs else _verdicts(result),
            f"{result.seconds:.1f}",
        )
    console.print(table)
    caught = sum(bool(result.noticed) for result in results)
    style = "bold green" if caught == len(results) else "bold red"
    console.print(f"{caught} of {len(results)} planted bugs caught", style=style)


def as_json(results: Sequence[Result]) -> list[dict[str, Any]]:
    return [
        {
            "bug": result.bug.name,
            "invariant": result.bug.invariant,
            "caught": bool(result.noticed),
            "seconds": round(result.seconds, 1),
            "runs": [
                {
                    "harness": run.harness,
                    "verdict": run.verdict.value,
                    "test": run.test,
                    "words": run.words,
                    "seconds": round(run.seconds, 1),
                }
                for run in result.runs
            ],
        }
        for result in results
    ]


def as_page(invariants: Mapping[int, str], bugs: Sequence[Bug], known: Mapping[str, Any]) -> str:
    """Render docs/mutants.md. `known`: the results in the form of `as_json`, by the bug's name."""
    caught = sum(bool(known[bug.name]["caught"]) for bug in bugs if bug.name in known)
    lines = [_INTRODUCTION.format(count=len(bugs), caught=caught, python=platform.python_version())]
    for number, name in invariants.items():
        bugs_of_invariant = [bug for bug in bugs if bug.invariant == number]
        if bugs_of_invariant:
            lines.append(f"## {number}. {name}\n\n| bug | effect | caught by | s |\n|---|---|---|---:|\n")
            lines += [_row(bug, known.get(bug.name)) for bug in bugs_of_invariant]
            lines.append("\n")
    return "".join(lines).rstrip() + "\n"


def _row(bug: Bug, result: Mapping[str, Any] | None) -> str:
    if result is None:
        return f"| `{bug.name}` | {bug.breaks} | not tried | |\n"
    noticed = [run for run in result["runs"] if run["verdict"] == Verdict.NOTICED.value]
    tests = "<br>".join(f"{_folder(run['harness'])}: `{run['test'].partition('::')[2]}`" for run in noticed)
    return f"| `{bug.name}` | {bug.breaks} | {tests or '**MISSED**'} | {result['seconds']:.0f} |\n"


def _folder(harness: str) -> str:
    return "/".join(harness.removesuffix(".py").split("/")[1:3])


def _harness(run: Run) -> str:
    return _folder(run.harness)


def _test(run: Run) -> str:
    return run.test.removeprefix("tests/")


def _verdicts(result: Result) -> str:
    return "; ".join(
        f"{run.harness.removeprefix('tests/')} {run.verdict.value}{f' ({_test(run)})' if run.test else ''}"
        for run in result.runs
    )
