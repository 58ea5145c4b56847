"""Every error of the SDK says what happened, and what to do."""

from __future__ import annotations

import string
from inspect import getdoc

import pytest

from liveness import sdk
from liveness.sdk import errors
from liveness.sdk.errors import GiveUp, LivenessSdkError, Outcome, RetryLater


def all_errors() -> list[type[LivenessSdkError]]:
    found, waiting = [], [LivenessSdkError]
    while waiting:
        kind = waiting.pop()
        found.append(kind)
        waiting += kind.__subclasses__()
    return [kind for kind in found if kind.__module__ == errors.__name__]


@pytest.mark.parametrize(
    "kind", [kind for kind in all_errors() if not issubclass(kind, Outcome)], ids=lambda kind: kind.__name__
)
def test_an_errors_docstring_is_its_message(kind: type[LivenessSdkError]) -> None:
    template = getdoc(kind)
    assert template is not None
    names = [name for _, name, _, _ in string.Formatter().parse(template) if name]
    error = kind(**{name: f"<{name}>" for name in names})
    assert all(f"<{name}>" in str(error) for name in names)
    assert error.fields.keys() == set(names)


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_every_error_is_drawn_in_the_tree(kind: type[LivenessSdkError]) -> None:
    assert kind.__name__ in (errors.__doc__ or "")


@pytest.mark.parametrize(
    "kind",
    [kind for kind in all_errors() if kind is not Outcome],
    ids=lambda kind: kind.__name__,
)
def test_every_error_can_be_caught_by_programs(kind: type[LivenessSdkError]) -> None:
    assert getattr(sdk, kind.__name__) is kind
    assert kind.__name__ in sdk.__all__


def test_outcomes_carry_the_handlers_words() -> None:
    assert str(GiveUp("no such photo")) == "no such photo"
    later = RetryLater("the disk is full", after=30)
    assert (str(later), later.after) == ("the disk is full", 30)
