"""The base of all error trees: an error class declares its message template and its typed fields.

    class WorkerNotFound(NotFound):
        template = "There is no worker {worker} in namespace {namespace}."

        worker: str
        namespace: str

    raise WorkerNotFound(worker="w-1", namespace="default")

Every annotation of a subclass is a field, as in a dataclass: keyword-only unless the class says `kw_only=False`, and a type
checker reports a field that is missing or misspelt. The message is code, not a docstring, so it survives `python -OO`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, dataclass_transform


@dataclass_transform(eq_default=False, kw_only_default=True)
class TemplatedError(Exception):
    template: ClassVar[str]
    """The message; the error's fields replace the braces."""
    field_names: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, *, kw_only: bool = True, **options: Any) -> None:
        super().__init_subclass__(**options)
        # Not frozen: contextlib and asyncio assign `__traceback__`. Compared by identity, like every exception.
        made: Any = dataclasses.dataclass(eq=False, kw_only=kw_only)(cls)
        cls.field_names = tuple(field.name for field in dataclasses.fields(made))

    @property
    def fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.field_names}

    def __str__(self) -> str:
        return self.template.format_map(self.fields)

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is copied and unpickled by calling its class with `args`, which keyword fields are not part of.
        return _without_init, (type(self), self.args), self.__dict__


def _without_init(kind: type[TemplatedError], args: tuple[Any, ...]) -> TemplatedError:
    return kind.__new__(kind, *args)
