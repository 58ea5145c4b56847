"""The matrix names tests that exist, and sums up what they report."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest

from tests.crash.fault_runner import ROOT, as_data, read
from tests.crash.matrix import FAULTS, INVARIANTS, Fault
from tests.crash.report import as_page

FAULT = Fault("a fault", "Something happens.", (1,), ("tests/x.py",))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_fault_names_existing_tests(fault: Fault) -> None:
    assert set(fault.invariants) <= set(INVARIANTS)
    for node in fault.nodes:
        file, _, test = node.partition("::")
        source = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^async def {test or 'test_'}", source, re.MULTILINE), node


def test_every_crash_long_test_belongs_to_a_fault() -> None:
    chosen = [node.partition("::") for fault in FAULTS for node in fault.nodes]
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name = path.relative_to(ROOT).as_posix()
        # Finds marked tests. A marked parameter belongs to a test that the matrix names as a whole.
        marked = re.findall(
            r"^@pytest\.mark\.crash_long\n(?:@.*\n)*async def (\w+)",
            path.read_text(encoding="utf-8"),
            re.MULTILINE,
        )
        for test in marked:
            assert any(file == name and (not one or one == test) for file, _, one in chosen), (
                f"{name}::{test}"
            )


def results(*cases: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<testsuite>{''.join(cases)}</testsuite>")


def told(**what: object) -> str:
    values = {"tried": 0, "violated": 0, "row": "", "seconds": None, "text": "", **what}
    value = json.dumps(values).replace('"', "&quot;")
    return f'<properties><property name="told" value="{value}"/></properties>'


def test_rows_sum_the_reports_of_their_tests() -> None:
    [row] = read(
        FAULT,
        results(
            f'<testcase name="a" time="2.5">{told(tried=10)}</testcase>',
            '<testcase name="b" time="1"/>',
            f'<testcase name="c" time="1">{told(text="nothing to count")}</testcase>',
        ),
    )
    assert (row.name, row.tried, row.violated, row.seconds) == ("a fault", 12, 0, 4.5)
    assert row.held


def test_one_test_can_report_several_rows() -> None:
    rows = read(
        FAULT,
        results(
            f'<testcase name="a" time="9">{told(row="x", tried=2, seconds=1)}{told(row="y", tried=3, seconds=4)}</testcase>'
        ),
    )
    assert [(row.name, row.tried, row.seconds) for row in rows] == [
        ("a fault: x", 2, 1),
        ("a fault: y", 3, 4),
    ]


@pytest.mark.parametrize(
    ("case", "tried", "violated"),
    [
        ('<testcase name="a" time="1"><failure>why</failure></testcase>', 1, 1),
        (f'<testcase name="a" time="1">{told(tried=5, violated=3)}<failure>why</failure></testcase>', 5, 3),
        ('<testcase name="a" time="1"><error>why</error></testcase>', 1, 1),
        ('<testcase name="a" time="1"><skipped message="no compiler"/></testcase>', 0, 0),
        ("", 0, 0),
    ],
    ids=["failed", "violated", "broken", "skipped", "absent"],
)
def test_a_failed_or_untried_row_does_not_hold(case: str, tried: int, violated: int) -> None:
    [row] = read(FAULT, results(case))
    assert (row.tried, row.violated, row.held) == (tried, violated, False)


def test_the_page_shows_tries_and_attacked_invariants() -> None:
    [row] = read(FAULTS[0], results(f'<testcase name="a" time="2">{told(tried=1_000)}</testcase>'))
    page = as_page([as_data(row)])
    assert "| kill -9, SQLite | 1,000 | 0 | 2 | 1 |" in page
    assert "durable ack" in page
