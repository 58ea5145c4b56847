"""The stored result of `make sim`, and its page."""

from __future__ import annotations

import json

from tests.simulation.results import BEGIN, END, PAGE, RESULTS, RunTotals, rendered
from tests.simulation.sometimes import SITUATIONS


def test_the_page_shows_the_stored_result() -> None:
    page = PAGE.read_text()
    assert page.split(BEGIN)[1].split(END)[0].strip() == rendered(json.loads(RESULTS.read_text())).strip()


def test_the_stored_result_reached_every_situation_and_broke_no_rule() -> None:
    result = json.loads(RESULTS.read_text())
    assert result["rules_broken"] == {}
    assert list(result["situations"]) == list(SITUATIONS)


def test_a_rarely_reached_situation_is_named() -> None:
    total = RunTotals()
    total.sometimes.update(dict.fromkeys(SITUATIONS, 10))
    total.sometimes[SITUATIONS[3]] = 9
    assert total.rare(10) == [SITUATIONS[3]]
