"""How a handler wants to be called is read from its signature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from liveness.sdk import InvalidArgument, Worker
from liveness.sdk.handlers import HANDLERS_MAX, RegisteredHandler, inspect_handler


@dataclass
class Photo:
    width: int


def inspected(function: Callable[..., Any], **local_names: Any) -> tuple[bool, Any]:
    found = inspect_handler(function, local_names)
    return found.takes_input, found.input_type


def with_task(task: object) -> None: ...
def with_default(task: object, log: Photo = Photo(1)) -> None: ...  # noqa: B008
def with_any(task, photo): ...
def with_type(task: object, photo: Photo) -> None: ...
async def with_list(task: Missing, photo: list[Photo]) -> Missing: ...  # type: ignore[name-defined]  # noqa: F821


class Handlers:
    def method(self, task: object, photo: Photo) -> None: ...

    async def __call__(self, task: object, photo: Photo) -> None: ...


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (with_task, (False, Any)),
        (with_default, (False, Any)),
        (with_any, (True, Any)),
        (with_type, (True, Photo)),
        (with_list, (True, list[Photo])),
        (Handlers().method, (True, Photo)),
        (Handlers(), (True, Photo)),
        (partial(with_type), (True, Photo)),
        (lambda task: None, (False, Any)),
        (print, (False, Any)),
    ],
)
def test_the_second_parameter_without_a_default_gets_the_input(
    function: Callable[..., Any], expected: tuple[bool, Any]
) -> None:
    assert inspected(function) == expected


def test_a_type_may_be_defined_beside_the_handler() -> None:
    worker = Worker("localhost:1")

    @dataclass
    class Local:
        width: int

    @worker.activity("resize")
    def resize(task: object, photo: Local) -> None: ...

    assert worker._handlers["resize"] == RegisteredHandler(resize, takes_input=True, input_type=Local)


def test_an_annotation_that_names_nothing_is_refused_at_once() -> None:
    def handler(task: object, photo: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(InvalidArgument, match=r"'Missing' of .*handler cannot be resolved"):
        inspect_handler(handler, {})


def test_a_handler_with_three_parameters_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="has 3 parameters"):
        inspect_handler(lambda task, photo, other: None, {})


def test_a_worker_has_no_more_handlers_than_a_poll_can_name() -> None:
    worker = Worker("localhost:1")
    for number in range(HANDLERS_MAX):
        worker.activity(str(number))(with_task)
    with pytest.raises(InvalidArgument, match="at most 1000 handlers"):
        worker.activity("one more")(with_task)
