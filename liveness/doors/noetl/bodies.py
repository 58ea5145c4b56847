"""Bodies of NoETL's clients as registrations, and entries as rows of its answers. Two generations of clients are understood:

- labels as a list of texts, or as a map;
- `runtime` as a text ("cpu"), or as an object with a `type`;
- `uri`, or `endpoint` or `base_url` as it was called before; `component_type`, or `kind`.

Unknown fields are ignored, since clients send more from version to version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from liveness.domain.errors import InvalidField
from liveness.doors.noetl.settings import CAPACITY_MAX, NoetlSettings
from liveness.v1 import registry_pb2
from liveness.v1.registry_service_pb2 import RegisterRequest

POOL = "worker_pool"
SERVER = "server_api"
DEFAULT_STATUS = "ready"
OFFLINE = "offline"
NAME_CHARS_MAX = 200
DEFAULT_POOL_NAMES = ("worker-cpu", "worker-gpu")

Body = Mapping[str, Any]


class Registration(NamedTuple):
    """What a client says about a component."""

    kind: str
    name: str
    runtime: str
    session: str
    """HOST:PID; empty if it does not say both."""
    request: RegisterRequest


def parse_body(content: bytes) -> Body:
    try:
        body = msgspec.json.decode(content or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidField(field="body", rule="must be JSON") from None
    if not isinstance(body, dict):
        raise InvalidField(field="body", rule="must be a JSON object")
    return body


def text_of(body: Body, *names: str, required: bool = False) -> str:
    """The first of these fields that is set. Numbers are taken as texts, because some clients send them."""
    for name in names:
        value = body.get(name)
        if value is None or value == "":
            continue
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise InvalidField(field=name, rule="must be a text")
        if stripped := str(value).strip():
            return stripped
    if required:
        raise InvalidField(field=names[0], rule="is required")
    return ""


def name_of(body: Body, default: str = "") -> str:
    name = text_of(body, "name") or default
    if not name:
        raise InvalidField(field="name", rule="is required")
    if len(name) > NAME_CHARS_MAX:
        raise InvalidField(field="name", rule=f"must have at most {NAME_CHARS_MAX} characters")
    return name


def kind_of(body: Body, default: str) -> str:
    return text_of(body, "component_type", "kind") or default


def key_of(kind: str, name: str) -> str:
    return f"{kind}:{name}"


def runtime_id(namespace: str, key: str) -> str:
    """A number that stays the same for a name, as a text: it has more digits than some JSON readers keep."""
    digest = sha256(f"{namespace}\n{key}".encode()).digest()
    return str(int.from_bytes(digest[:8]) >> 1)


def read_registration(body: Body, kind: str, settings: NoetlSettings) -> Registration:
    """Raises InvalidField."""
    name = name_of(body)
    runtime, told = _runtime(body)
    if kind == POOL and not runtime:
        raise InvalidField(field="runtime", rule="is required")
    uri = text_of(body, "uri", "endpoint", "base_url", required=kind != POOL)
    pid, host = text_of(body, "pid"), text_of(body, "hostname")
    return _registration(
        kind, name, runtime, settings,
        uri=uri, status=text_of(body, "status").lower() or DEFAULT_STATUS, capacity=_capacity(body),
        labels=_labels(body.get("labels")), pid=pid, host=host, told=told,
    )  # fmt: skip


def registration_of_heartbeat(body: Body, name: str, settings: NoetlSettings) -> Registration:
    """The pool that a heartbeat is about, from what it says about it: often nothing but the name."""
    told = body.get("registration")
    known: Body = told if isinstance(told, dict) else body
    runtime, details = _runtime(known)
    runtime = runtime or (
        name.removeprefix("worker-") if name in DEFAULT_POOL_NAMES else settings.pool_runtime
    )
    capacity = _capacity(known)
    return _registration(
        POOL, name, runtime, settings,
        uri=text_of(known, "uri", "endpoint", "base_url"),
        status=text_of(known, "status").lower() or DEFAULT_STATUS,
        capacity=settings.capacity if capacity is None else capacity,
        labels=_labels(known.get("labels")) or dict.fromkeys(settings.labels, ""),
        pid=text_of(known, "pid"), host=text_of(known, "hostname"), told=details,
    )  # fmt: skip


def own_registration(settings: NoetlSettings, url: str, host: str, process_id: int) -> RegisterRequest:
    """The server itself, as NoETL's own server registers."""
    request = RegisterRequest(
        namespace=settings.namespace,
        worker_instance_key=key_of(SERVER, settings.server_name),
        session_id=f"{host}:{process_id}",
        uri=url,
        runtime_json='{"type":"server"}',
        host_name=host,
        process_id=str(process_id),
    )
    request.lease_duration.FromMilliseconds(settings.offline_after_ms)
    request.expected_interval.FromMilliseconds(settings.sweep_interval_ms)
    return request


def _registration(
    kind: str, name: str, runtime: str, settings: NoetlSettings, *,
    uri: str, status: str, capacity: int | None, labels: Mapping[str, str], pid: str, host: str, told: Body,
) -> Registration:  # fmt: skip
    request = RegisterRequest(
        namespace=settings.namespace, worker_instance_key=key_of(kind, name), uri=uri, status=status, labels=labels,
        host_name=host, process_id=pid,
    )  # fmt: skip
    request.runtime_json = json.dumps({"type": runtime, **told}, ensure_ascii=False, separators=(",", ":"))
    if capacity is not None:
        request.capacity = capacity
    request.lease_duration.FromMilliseconds(settings.offline_after_ms)
    request.expected_interval.FromMilliseconds(settings.heartbeat_interval_ms)
    return Registration(kind, name, runtime, f"{host}:{pid}" if host and pid else "", request)


def _runtime(body: Body) -> tuple[str, dict[str, Any]]:
    """Returns the type of the runtime, and everything else that is told about how it runs."""
    runtime, meta = body.get("runtime"), body.get("meta")
    if meta is not None and not isinstance(meta, dict):
        raise InvalidField(field="meta", rule="must be an object")
    if isinstance(runtime, dict):
        return text_of(runtime, "type", "runtime").lower(), {**runtime, **(meta or {})}
    return text_of(body, "runtime").lower(), dict(meta or {})


def _capacity(body: Body) -> int | None:
    capacity = body.get("capacity")
    if capacity is None or capacity == "":
        return None
    if isinstance(capacity, str) and capacity.isascii() and capacity.isdecimal() and len(capacity) <= 10:
        capacity = int(capacity)
    if isinstance(capacity, bool) or not isinstance(capacity, int) or not 0 <= capacity <= CAPACITY_MAX:
        raise InvalidField(field="capacity", rule=f"must be a whole number from 0 to {CAPACITY_MAX}")
    return capacity


def _labels(labels: Any) -> dict[str, str]:
    if labels is None:
        return {}
    if isinstance(labels, list) and all(isinstance(label, str) for label in labels):
        return dict.fromkeys(labels, "")
    if isinstance(labels, dict):
        return {
            name: value if isinstance(value, str) else json.dumps(value) for name, value in labels.items()
        }
    raise InvalidField(field="labels", rule="must be a list of texts or a map")


# -- answers


def row_of(entry: registry_pb2.RegistryEntry) -> dict[str, Any]:
    """An entry as a row of a list."""
    runtime = json.loads(entry.runtime_json or "{}")
    labels: Any = dict(entry.labels)
    if labels and not any(labels.values()):
        labels = sorted(labels)  # it was a list
    return {
        "name": entry.name,
        "kind": entry.kind,
        "runtime_id": runtime_id(entry.namespace, entry.worker_instance_key),
        "runtime": runtime.get("type", "") if isinstance(runtime, dict) else "",
        "uri": entry.uri or None,
        "status": entry.status,
        "capacity": entry.capacity if entry.HasField("capacity") else None,
        "labels": labels or None,
        "meta": runtime,
        "pid": int(entry.process_id) if entry.process_id.isascii() and entry.process_id.isdecimal() else entry.process_id or None,
        "hostname": entry.host_name or None,
        "heartbeat": _time(entry, "last_seen_time"),
        "created_at": _time(entry, "first_seen_time"),
        "updated_at": _time(entry, "last_seen_time"),
        "replicas": [f"{replica.host_name}:{replica.process_id}" for replica in entry.replicas],
    }  # fmt: skip


def _time(entry: registry_pb2.RegistryEntry, field: str) -> str | None:
    return getattr(entry, field).ToJsonString() if entry.HasField(field) else None  # type: ignore[arg-type]
