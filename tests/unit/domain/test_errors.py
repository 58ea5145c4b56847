"""Every refusal says what to do, and has a name for machines."""

import string
from inspect import getdoc

import pytest

from liveness.domain import errors
from liveness.domain.errors import LivenessError, StaleHeartbeat


def all_errors() -> list[type[LivenessError]]:
    found, waiting = [], [LivenessError]
    while waiting:
        kind = waiting.pop()
        found.append(kind)
        waiting += kind.__subclasses__()
    return [kind for kind in found if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_an_errors_docstring_is_its_message(kind: type[LivenessError]) -> None:
    template = getdoc(kind)
    assert template is not None
    names = [name for _, name, _, _ in string.Formatter().parse(template) if name]
    error = kind(**{name: f"<{name}>" for name in names})
    message = str(error)
    assert all(f"<{name}>" in message for name in names)
    assert message.endswith(".")
    assert error.fields.keys() == set(names)


def test_a_reason_is_the_name_in_capitals() -> None:
    assert StaleHeartbeat(sequence=1, last_sequence=2).reason == "STALE_HEARTBEAT"


def test_reasons_are_unique() -> None:
    reasons = [kind.__name__ for kind in all_errors()]
    assert len(reasons) == len(set(reasons))


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_every_error_is_drawn_in_the_tree(kind: type[LivenessError]) -> None:
    assert kind.__name__ in (errors.__doc__ or "")
