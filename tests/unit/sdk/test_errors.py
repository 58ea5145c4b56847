"""Programs can import and catch every error of the SDK."""

from __future__ import annotations

import pickle

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
    public = [kind for kind in found if not kind.__name__.startswith("_")]
    return [kind for kind in public if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_the_module_docstring_lists_every_error(kind: type[LivenessSdkError]) -> None:
    assert kind.__name__ in (errors.__doc__ or "")


@pytest.mark.parametrize(
    "kind",
    [kind for kind in all_errors() if kind is not Outcome],
    ids=lambda kind: kind.__name__,
)
def test_every_error_is_exported_by_the_sdk(kind: type[LivenessSdkError]) -> None:
    assert getattr(sdk, kind.__name__) is kind
    assert kind.__name__ in sdk.__all__


def test_an_outcome_carries_the_text_of_the_handler() -> None:
    assert str(GiveUp("no such photo")) == "no such photo"
    later = RetryLater("the disk is full", after=30)
    assert (str(later), later.after) == ("the disk is full", 30)


class NoRoom(GiveUp):
    """A program's own reason to give up."""

    disk: str

    def __init__(self, disk: str) -> None:
        super().__init__(f"no room on {disk}")
        self.disk = disk


class NoRoomForPhotos(NoRoom):
    pass


def test_a_program_can_subclass_the_outcomes_like_any_exception() -> None:
    error = NoRoomForPhotos("sda1")
    assert (str(error), error.disk, error.why) == ("no room on sda1", "sda1", "no room on sda1")
    copied = pickle.loads(pickle.dumps(error))
    assert (type(copied), str(copied), copied.disk) == (NoRoomForPhotos, "no room on sda1", "sda1")
