"""Every error class of the package, with a sample value for each of its fields."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import liveness.app
import liveness.cli.server_process
import liveness.cluster.quotas
import liveness.engine.restore
import liveness.fencing
import liveness.frontend.app
import liveness.http.transcoding
import liveness.sdk
import liveness.store.backup  # noqa: F401  the modules that define errors
from liveness.fencing import SeenToken
from liveness.sdk import ActivityRef, ActivityState
from liveness.templated_error import TemplatedError

SAMPLES: dict[str, Any] = {
    "int": 7,
    "str": "<text>",
    "float": 1.5,
    "Path": Path("/var/lib/liveness.db"),
    "frozenset[int]": frozenset({1, 2}),
    "ActivityRef": ActivityRef("order-17", "run-1", "charge"),
    "ActivityState": ActivityState.FAILED,
    "SeenToken": SeenToken(2, 3, "worker-1"),
}


def all_errors() -> list[type[TemplatedError]]:
    found, waiting = [], list(TemplatedError.__subclasses__())
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind.__module__.startswith("liveness."):
            found.append(kind)
    return sorted(found, key=qualified_name)


def qualified_name(kind: type[TemplatedError]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def sample(kind: type[TemplatedError]) -> TemplatedError:
    build: Callable[..., TemplatedError] = kind
    return build(**{name: SAMPLES[field_type(kind, name)] for name in kind.field_names})


def field_type(kind: type[TemplatedError], name: str) -> str:
    """The annotation as it is written, because some types are imported for type checking only."""
    for base in kind.__mro__:
        if name in vars(base).get("__annotations__", {}):
            return str(vars(base)["__annotations__"][name])
    raise AssertionError(f"{kind.__name__} has no field {name}")
