"""The functions that run activities, and how each is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias, get_type_hints

from liveness.sdk.errors import InvalidArgument
from liveness.sdk.task import Task

Handler: TypeAlias = Callable[..., Any]
"""Takes the task, or the task and its input: `handler(task)` or `handler(task, photo: Photo)`."""

HANDLERS_MAX = 1_000
"""A poll names the types of all handlers, and the server takes no more of them."""


class RegisteredHandler(NamedTuple):
    function: Handler
    takes_input: bool
    """The function has a second parameter, without a default."""
    input_type: Any
    """The annotation of the second parameter; `Any` if it has none."""

    @property
    def is_coroutine_function(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    def arguments(self, task: Task) -> tuple[Any, ...]:
        """Raises NotConvertible if the input is no value of the annotated type."""
        return (task, task.value(self.input_type)) if self.takes_input else (task,)


def inspect_handler(function: Handler, local_names: Mapping[str, Any]) -> RegisteredHandler:
    """`local_names`: of the place where the function is defined, in which its annotations may have names."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some built-in functions have no signature
        return RegisteredHandler(function, takes_input=False, input_type=Any)
    positional = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    required = [parameter for parameter in positional if parameter.default is parameter.empty]
    if len(required) > 2:
        raise InvalidArgument(
            detail=f"{_name(function)} has {len(required)} parameters; a handler takes the task, or the task and its input."
        )
    if len(required) < 2:
        return RegisteredHandler(function, takes_input=False, input_type=Any)
    annotation = required[1].annotation
    if annotation is inspect.Parameter.empty:
        return RegisteredHandler(function, takes_input=True, input_type=Any)
    if isinstance(annotation, str):
        annotation = _resolve(function, required[1].name, annotation, local_names)
    return RegisteredHandler(function, takes_input=True, input_type=annotation)


def _resolve(function: Handler, parameter: str, annotation: str, local_names: Mapping[str, Any]) -> Any:
    """The type that an annotation in text form names, as `from __future__ import annotations` leaves it."""
    target = function if inspect.isroutine(function) else getattr(function, "func", type(function).__call__)
    target = getattr(target, "__func__", target)

    def only_this_one() -> None:
        """Other annotations need not be resolvable: nothing reads them."""

    only_this_one.__annotations__ = {parameter: annotation}
    names = getattr(inspect.unwrap(target), "__globals__", {})
    try:
        return get_type_hints(only_this_one, names, dict(local_names), include_extras=True)[parameter]
    except Exception as error:  # an annotation may be any expression
        raise InvalidArgument(
            detail=f"the annotation {annotation!r} of {_name(function)} cannot be resolved: {error}; define the type where "
            "the handler can see it."
        ) from error


def _name(function: Handler) -> str:
    return getattr(function, "__qualname__", repr(function))
