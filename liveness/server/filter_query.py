"""Parse the text by which people filter workers: the same in the dashboard, in commands and over HTTP.

Each word must be found: `photo` in any field, `host:db-3` in one. A colon after anything else belongs to the word, because keys contain
colons. `liveness/dashboard/static/worker_filter.js` reads the text in the same way.
"""

from __future__ import annotations

from liveness.domain.errors import InvalidField
from liveness.domain.worker import WorkerState
from liveness.store.api import FilterWord, ascii_lower

QUERY_CHARS_MAX = 500
WORDS_MAX = 20
COLUMNS = {"key": "worker_key", "host": "host_name", "build": "build_id", "queue": "task_queue"}
STATE = "state"
STATES = {
    "active": WorkerState.ACTIVE,
    "inactive": WorkerState.INACTIVE,
    "cleaned-up": WorkerState.CLEANED_UP,
}


def filter_words(field: str, query: str) -> tuple[FilterWord, ...]:
    """Raises InvalidField."""
    if len(query) > QUERY_CHARS_MAX:
        raise InvalidField(field=field, rule=f"must have at most {QUERY_CHARS_MAX} characters")
    if "\0" in query:
        raise InvalidField(field=field, rule="must not contain NUL")
    words = query.split()
    if len(words) > WORDS_MAX:
        raise InvalidField(field=field, rule=f"must have at most {WORDS_MAX} words")
    return tuple(_word(field, ascii_lower(word)) for word in words)


def _word(field: str, word: str) -> FilterWord:
    name, _, text = word.partition(":")
    if name == STATE and text:
        states = _states(text)
        if not states:
            raise InvalidField(
                field=field, rule=f"has the state {text!r}, and workers are {', '.join(STATES)}"
            )
        return FilterWord(text, (), states)
    if name in COLUMNS and text:
        return FilterWord(text, (COLUMNS[name],))
    return FilterWord(word, tuple(COLUMNS.values()), _states(word))


def _states(beginning: str) -> tuple[WorkerState, ...]:
    return tuple(state for name, state in STATES.items() if name.startswith(beginning))
