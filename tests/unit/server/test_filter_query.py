"""The words by which people filter workers."""

from __future__ import annotations

import pytest

from liveness.domain.errors import InvalidField
from liveness.domain.worker import WorkerState
from liveness.server.filter_query import COLUMNS, WORDS_MAX, filter_words
from liveness.store.api import FilterWord

ANYWHERE = tuple(COLUMNS.values())


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("", ()),
        ("  Photo ", (FilterWord("photo", ANYWHERE),)),
        ("host:DB-3", (FilterWord("db-3", ("host_name",)),)),
        ("state:in", (FilterWord("in", (), (WorkerState.INACTIVE,)),)),
        ("state:cleaned-up", (FilterWord("cleaned-up", (), (WorkerState.CLEANED_UP,)),)),
        ("act", (FilterWord("act", ANYWHERE, (WorkerState.ACTIVE,)),)),
        ("worker:discovery:0", (FilterWord("worker:discovery:0", ANYWHERE),)),
        ("key:worker:discovery:0", (FilterWord("worker:discovery:0", ("worker_key",)),)),
        ("host:", (FilterWord("host:", ANYWHERE),)),
        ("a queue:b", (FilterWord("a", ANYWHERE, (WorkerState.ACTIVE,)), FilterWord("b", ("task_queue",)))),
    ],
)
def test_a_text_is_read_word_by_word(query: str, words: tuple[FilterWord, ...]) -> None:
    assert filter_words("filter.query", query) == words


@pytest.mark.parametrize(
    ("query", "rule"),
    [
        ("state:gone", "has the state 'gone', and workers are active, inactive, cleaned-up"),
        ("x" * 501, "at most 500 characters"),
        ("x " * (WORDS_MAX + 1), "at most 20 words"),
        ("a\0b", "must not contain NUL"),
    ],
)
def test_a_text_that_cannot_be_meant_is_refused(query: str, rule: str) -> None:
    with pytest.raises(InvalidField, match=rule):
        filter_words("filter.query", query)
