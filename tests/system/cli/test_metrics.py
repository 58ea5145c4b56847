"""`liveness metrics` reports numbers and shows them with charts."""

from __future__ import annotations

from liveness.cli.fleet.sparkline import BARS
from tests.system.cli.shell import Shell


def test_what_is_reported_is_shown_with_a_chart(shell: Shell) -> None:
    shell.ok(
        "metrics", "report", "w1", "queue_depth=17", "load=-0.25", "--label", "queue=gpu", "--unit", "jobs"
    )
    shell.ok("metrics", "report", "w1", "rows_total=12", "--counter")
    shell.ok("metrics", "report", "w2", "load=1e6")
    heading, *rows = shell.ok("metrics", "query").splitlines()
    assert heading.split()[:4] == ["component", "metric", "labels", "last"]
    cells = [row.split() for row in rows]
    assert [row[:2] for row in cells] == [
        ["w1", "load"],
        ["w1", "queue_depth"],
        ["w1", "rows_total"],
        ["w2", "load"],
    ]
    assert cells[1][2:7] == ["queue=gpu", "17", "jobs", "17", "17"]
    assert cells[0][3] == "-0.25"
    assert cells[3][2] == "1000000"
    assert all(row[-1] in BARS for row in cells), "one bar in the present"
    assert len(shell.ok("metrics", "query", "--worker", "w1", "--label", "queue=gpu").splitlines()) == 3


def test_json_has_the_fields_of_the_contract(shell: Shell) -> None:
    assert shell.json("metrics", "report", "w", "a=2", "--counter") == [{"stored_samples": 1}]
    [series] = shell.json("metrics", "query", "--name", "a", "--since", "10m", "--step", "1m")
    assert (series["worker_instance_key"], series["type"]) == ("w", "METRIC_TYPE_COUNTER")
    assert [point["value"] for point in series["points"]] == [2]
    assert shell.json("metrics", "query", "--worker", "nobody") == []


def test_mistakes_get_one_sentence(shell: Shell) -> None:
    result = shell.run("metrics", "report", "w", "a=x")
    assert (result.exit_code, "is not NAME=VALUE with a number" in result.stderr) == (2, True)
    result = shell.run("metrics", "query", "--label", "queue")
    assert (result.exit_code, "is not NAME=VALUE, such as queue=gpu" in result.stderr) == (2, True)
    assert "samples[0].name must be a letter" in shell.sentence("metrics", "report", "w", "a b=1")
    assert "samples[0].value must be a number between" in shell.sentence("metrics", "report", "w", "a=nan")
    empty = shell.run("metrics", "query")
    assert empty.exit_code == 0
    assert "Nothing was reported in namespace" in empty.stderr
