"""The settings of the door. The variables are those of NoETL, with their documented defaults."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from liveness.templated_error import TemplatedError

NAMESPACE = "noetl"
SECONDS_MAX = 86_400
CAPACITY_MAX = 2**31 - 1
NAME = re.compile(r"[^\x00-\x1f\x7f]{1,200}")
Value = TypeVar("Value")


class NoetlSettingsError(TemplatedError):
    template = "{variable} is {value!r}, but must be {rule}."

    variable: str
    value: str
    rule: str


class NoetlSettings(NamedTuple):
    namespace: str = NAMESPACE
    """The namespace in which all components register."""
    replicas: str = "show"
    """What happens to a second process that registers a name: show, refuse or number."""
    offline_after_ms: int = 45_000
    """The lease of a component: how long it may be silent before it is offline."""
    auto_recreate: bool = True
    """Register a component anew that heartbeats and is not known."""
    server_name: str = "server"
    """Under which the server itself is registered, with the kind server_api."""
    sweep_interval_ms: int = 15_000
    """How often the server is heard itself. Nothing is swept: leases end by their own timers."""
    metrics_interval_ms: int = 60_000
    """How often the server reports its own numbers; 0: never."""
    heartbeat_interval_ms: int = 15_000
    """How often clients are expected to be heard."""
    pool_name: str = "worker-cpu"
    """The pool of a heartbeat that names none."""
    pool_runtime: str = "cpu"
    """The runtime of a pool that is registered by its heartbeat alone."""
    capacity: int | None = None
    labels: tuple[str, ...] = ()


def from_environment(
    environment: Mapping[str, str], namespace: str = NAMESPACE, replicas: str = "show"
) -> NoetlSettings:
    """Raises NoetlSettingsError."""

    def read(variable: str, default: Value, parse: Callable[[str], Value | None], rule: str) -> Value:
        text = environment.get(variable, "").strip()
        if not text:
            return default
        value = parse(text)
        if value is None:
            raise NoetlSettingsError(variable=variable, value=text, rule=rule)
        return value

    def seconds(variable: str, default_s: int, least_s: float, *, may_be_zero: bool = False) -> int:
        rule = f"{'0, or ' if may_be_zero else ''}a number of seconds from {least_s:g} to {SECONDS_MAX}"

        def parse(text: str) -> int | None:
            return 0 if may_be_zero and text == "0" else _milliseconds(text, least_s)

        return read(variable, default_s * 1_000, parse, rule)

    def name(variable: str, default: str) -> str:
        return read(variable, default, _name, "a name of 1 to 200 printable characters")

    runtime = name("NOETL_WORKER_POOL_RUNTIME", "cpu").lower()
    return NoetlSettings(
        namespace=namespace,
        replicas=replicas,
        offline_after_ms=seconds("NOETL_SERVER_OFFLINE_AFTER", 45, 1),
        auto_recreate=read("NOETL_AUTO_RECREATE_RUNTIME", True, _boolean, "true or false"),
        server_name=name("NOETL_SERVER_NAME", f"server-{socket.gethostname()}"),
        sweep_interval_ms=seconds("NOETL_SERVER_SWEEP_INTERVAL", 15, 1),
        metrics_interval_ms=seconds("NOETL_SERVER_METRICS_INTERVAL", 60, 1, may_be_zero=True),
        heartbeat_interval_ms=seconds("NOETL_WORKER_HEARTBEAT_INTERVAL", 15, 1),
        pool_name=name("NOETL_WORKER_POOL_NAME", f"worker-{runtime}"),
        pool_runtime=runtime,
        capacity=read("NOETL_WORKER_CAPACITY", None, _capacity, f"a whole number from 0 to {CAPACITY_MAX}"),
        labels=tuple(
            label for part in environment.get("NOETL_WORKER_LABELS", "").split(",") if (label := part.strip())
        ),
    )


def _milliseconds(text: str, least_s: float) -> int | None:
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,3})?", text):
        return None
    seconds = float(text)
    return round(seconds * 1_000) if least_s <= seconds <= SECONDS_MAX else None


def _boolean(text: str) -> bool | None:
    return {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}.get(
        text.lower()
    )  # fmt: skip


def _name(text: str) -> str | None:
    return text if NAME.fullmatch(text) else None


def _capacity(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,10}", text) and int(text) <= CAPACITY_MAX else None
