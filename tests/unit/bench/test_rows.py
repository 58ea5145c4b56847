"""Benchmark rounds become rows, and rows are stored in a file that survives an interruption."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import __main__ as command
from bench.catalogue import FAMILIES, Family, row_order, select_families
from bench.results import Results
from bench.rounds import AT_LEAST, AT_MOST, OURS, Bar, Plan, alternate, median_ratios, row
from bench.servers import Unavailable


def fast_and_slow(bar: Bar | None = None) -> dict[str, Any]:
    return row("speed", "calls/s", {"ours": [50, 90, 40], "theirs": [100, 100, 100]}, "ours", "theirs", bar)


def test_the_ratio_is_taken_round_by_round() -> None:
    found = row("speed", "calls/s", {"ours": [50, 90], "theirs": [100, 100]}, "ours", "theirs")
    assert found["ratio"] == {"median": 0.7, "min": 0.5, "max": 0.9}
    assert found["sides"]["theirs"] == {"median": 100.0, "min": 100.0, "max": 100.0}


def test_a_burst_in_few_windows_does_not_change_the_ratio_of_a_round() -> None:
    ours, theirs = [90.0, 91.0, 9.0, 180.0, 181.0, 182.0], [100.0, 100.0, 100.0, 200.0, 200.0, 20.0]
    assert median_ratios(ours, theirs, rounds=2) == ([90.0, 181.0], [100.0, 200.0], [0.9, 0.905])
    found = {"ours": [90.0, 181.0], "theirs": [100.0, 200.0]}
    made = row(
        "speed", "calls/s", found, "ours", "theirs", Bar(sense=AT_LEAST, value=0.9), ratios=[0.9, 0.905]
    )
    assert (made["ratio"]["min"], made["ratio"]["max"], made["bar"]["met"]) == (0.9, 0.905, True)


@pytest.mark.parametrize(
    ("bar", "met"),
    [
        (Bar(sense=AT_LEAST, value=0.5), True),
        (Bar(sense=AT_LEAST, value=0.51), False),
        (Bar(sense=AT_MOST, value=0.5), True),
        (Bar(sense=AT_MOST, value=0.49), False),
        (Bar(sense=AT_MOST, value=50, of=OURS), True),
        (Bar(sense=AT_MOST, value=49, of=OURS), False),
    ],
)
def test_a_bar_is_met_by_the_median(bar: Bar, met: bool) -> None:
    assert fast_and_slow(bar)["bar"]["met"] is met


def test_the_sides_alternate_in_going_first() -> None:
    came: list[str] = []

    def side(name: str) -> float:
        came.append(name)
        return 1.0

    alternate("turns", {"a": lambda: side("a"), "b": lambda: side("b")}, rounds=2)
    assert came == ["a", "b", "b", "a"]


def test_rows_of_an_earlier_run_stay_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    earlier = Results(file, ["first", "second"], commit="abc")
    earlier.add({"row": "second", "ratio": {}}, "family", 1.0, 2.5)
    later = Results(file, ["first", "second"], commit="abc")
    later.add({"row": "first", "ratio": {}}, "family", 1.0, 2.5)
    assert [kept["row"] for kept in json.loads(file.read_text())["rows"]] == ["first", "second"]


def test_only_a_row_measured_at_the_same_scale_counts_as_measured(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json", [], commit="abc")
    results.add({"row": "measured", "ratio": {}}, "family", 1.0, 1.0)
    results.add({"row": "skipped", "skipped": "no server"}, "family", 1.0, 1.0)
    assert results.has("measured", 1.0)
    assert not results.has("measured", 0.5)
    assert not results.has("skipped", 1.0)


def run_of(family: Family) -> dict[str, Any]:
    results = Results(None, [], commit="abc")
    command._run(family, Plan(), results, shown=None)
    return results.rows


@pytest.mark.parametrize(
    ("error", "kind"), [(Unavailable("no server here"), "skipped"), (SystemExit("it broke"), "failed")]
)
def test_rows_that_cannot_be_measured_record_the_cause(error: BaseException, kind: str) -> None:
    def measure(plan: Plan) -> Iterator[dict[str, Any]]:
        yield fast_and_slow()
        raise error

    rows = run_of(Family("family", {"speed": "", "gone": "", "gone, too": ""}, measure))
    assert "ratio" in rows["speed"]
    assert str(error) in rows["gone"][kind]
    assert str(error) in rows["gone, too"][kind]


def test_row_names_are_unique() -> None:
    assert len(set(row_order())) == len(row_order())


def test_a_family_is_chosen_by_its_name_or_by_part_of_a_row() -> None:
    assert [family.name for family in select_families(["unary"])] == ["no-op"]
    assert [family.name for family in select_families(["etcd"])] == ["etcd"]
    assert [family.name for family in select_families(["tracked worker"])] == ["workers"]
    assert select_families([]) == list(FAMILIES)
    assert select_families(["nothing of this kind"]) == []
