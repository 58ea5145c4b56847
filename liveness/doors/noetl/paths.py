"""The paths of NoETL's runtime API. Each request becomes calls of the node with the caller's credential; nothing is kept here
but which client registered which session.

Errors are `{"detail": …}`, as these clients know them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from liveness.clock import Clock
from liveness.domain.errors import InvalidField, LivenessError
from liveness.doors.noetl import bodies
from liveness.doors.noetl.bodies import Body, Registration
from liveness.doors.noetl.pool_sessions import PoolSessions
from liveness.doors.noetl.settings import NoetlSettings
from liveness.http.app import PathHandlers, RequestHandler, json_response
from liveness.http.body_reader import BODY_BYTES_MAX, BodyReader
from liveness.http.errors import HttpError, from_error, from_rpc_error
from liveness.http.grpc_client import GrpcClient, current_client
from liveness.http.guard import check_content_type
from liveness.http.json_output import json_bytes
from liveness.slices import in_slices
from liveness.v1 import component_metrics_service_pb2, registry_pb2, registry_service_pb2

CALL_TIMEOUT_S = 4.0
"""The clients wait for 5 s."""
ANSWER_TIMEOUT_S = 10.0
"""For all calls that one request needs: lists are read page by page."""
RETRY_AFTER_S = 3
METRICS_BODY_BYTES_MAX = 512 * 1024
ROWS_MAX = 10_000
POOLS_BYTES_MAX = 8 * 1024 * 1024
"""A list of pools ends with the page that exceeds it: pools that describe themselves at length are fewer."""
METRICS_ANSWER_BYTES_MAX = 8 * 1024 * 1024
"""A list of samples ends with the series that exceeds it: each row repeats the labels."""
ROW_BYTES = 300
"""Of a row of metrics, without its labels and help."""
ROWS_PER_SLICE = 20
SERIES_PER_PAGE = 10
"""A series has up to 1,000 points; more of them than `POINTS_MAX` would be read for nothing."""
PAGE_ROWS = 500
POINTS_MAX = 10_000
SAMPLES_MAX = 1_000
LABELS_MAX = 16
"""Of a report, and of a sample, as in ReportMetrics."""
POINTS_DEFAULT = 1_000
VALUE_MAX = 1e200
"""Of a sample, as in ReportMetrics."""

_REGISTRY = registry_service_pb2.DESCRIPTOR.services_by_name["RegistryService"].methods_by_name
_METRICS = component_metrics_service_pb2.DESCRIPTOR.services_by_name[
    "ComponentMetricsService"
].methods_by_name
_UNKNOWN = "REGISTRY_ENTRY_NOT_FOUND"
_OUTDATED_SESSION = frozenset(
    ("WORKER_CLEANED_UP", "SESSION_SUPERSEDED", "SESSION_NOT_CURRENT", "STALE_HEARTBEAT")
)
"""Why a session that is remembered here cannot be used any more; its client registers anew, without knowing it."""
_FLEETING_LABELS = ("worker_id", "hostname")
"""These clients invent an id for each of their threads, and in Kubernetes each rollout brings new hosts. A series for each of them
would soon use up those that a component may have."""
_KINDS_WITH_METRICS = (bodies.POOL, bodies.SERVER, "broker")

Handle = Callable[[Request], Awaitable[Response]]


class NoetlPaths:
    def __init__(
        self, settings: NoetlSettings, clock: Clock, grpc_client: GrpcClient, body_reader: BodyReader
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._on_replica = registry_pb2.ReplicaPolicy.Value(f"REPLICA_POLICY_{settings.replicas.upper()}")
        self._grpc_client = grpc_client
        self._body_reader = body_reader
        self._sessions = PoolSessions(clock, settings.heartbeat_interval_ms, settings.offline_after_ms)

    def handlers(self) -> PathHandlers:
        deregister_pool = self._guarded(partial(self._deregister, default_kind=bodies.POOL))
        deregister = self._guarded(partial(self._deregister, default_kind=bodies.SERVER))
        return {
            "/api/worker/pool/register": {"POST": self._guarded(self._register_pool)},
            "/api/worker/pool/heartbeat": {"POST": self._guarded(self._heartbeat)},
            "/api/worker/pool/deregister": {"DELETE": deregister_pool, "POST": deregister_pool},
            "/api/runtime/register": {"POST": self._guarded(self._register_component)},
            "/api/runtime/deregister": {"DELETE": deregister, "POST": deregister},
            "/api/worker/pools": {"GET": self._guarded(self._pools)},
            "/api/metrics/report": {"POST": self._guarded(self._report_metrics)},
            "/api/metrics/query": {"GET": self._guarded(self._query_metrics)},
        }

    # -- registering

    async def _register_pool(self, request: Request) -> Response:
        body = await self._body(request)
        registration = bodies.read_registration(body, bodies.POOL, self._settings)
        name = await self._register(registration, request.headers)
        return self._ok(registration.kind, name, runtime=registration.runtime)

    async def _register_component(self, request: Request) -> Response:
        body = await self._body(request)
        registration = bodies.read_registration(body, bodies.kind_of(body, bodies.SERVER), self._settings)
        name = await self._register(registration, request.headers)
        return self._ok(registration.kind, name, component_type=registration.kind, kind=registration.kind)

    async def _register(self, registration: Registration, headers: Headers, *, is_new: bool = True) -> str:
        """Returns the name that it got: with a number, if replicas are numbered. `is_new`: its first heartbeat follows."""
        message = registration.request
        message.on_replica = self._on_replica
        message.session_id = (
            registration.session or f"{current_client.get().address or 'client'}:{registration.name}"
        )
        named_key = message.worker_instance_key
        answer = await self._register_again(message, headers) or await self._call(
            _REGISTRY["Register"], message, headers
        )
        entry = answer.entry
        self._sessions.remember(
            current_client.get().address,
            named_key,
            entry.worker_instance_key,
            answer.session_id,
            is_replica=answer.is_replica,
            is_new=is_new,
        )
        return str(entry.name)

    async def _register_again(self, message: registry_service_pb2.RegisterRequest, headers: Headers) -> Any:
        """Register a process under the number that it has, although a lower one may have become free: else the lease of its
        number would end while it lives. None if it has no number, or another process has it now."""
        key = self._sessions.key_of(message.worker_instance_key, message.session_id)
        if key == message.worker_instance_key:
            return None
        again = registry_service_pb2.RegisterRequest()
        again.CopyFrom(message)
        again.worker_instance_key, again.on_replica = key, registry_pb2.REPLICA_POLICY_REFUSE
        try:
            return await self._call(_REGISTRY["Register"], again, headers)
        except HttpError as error:
            if error.as_json()["error"]["reason"] not in ("WORKER_KEY_HELD", "WORKER_KEY_OWNED"):
                raise
            return None

    # -- heartbeats

    async def _heartbeat(self, request: Request) -> Response:
        body = await self._body(request)
        name = bodies.name_of(body, self._settings.pool_name)
        named_key = bodies.key_of(bodies.POOL, name)
        found = self._sessions.find(current_client.get().address, named_key)
        key = found.key if found else named_key
        message = registry_service_pb2.HeartbeatRequest(
            namespace=self._settings.namespace, worker_instance_key=key, session_id=found.session_id if found else "",
            status=bodies.text_of(body, "status").lower(),
        )  # fmt: skip
        try:
            answer = await self._call(_REGISTRY["Heartbeat"], message, request.headers)
        except HttpError as error:
            reason = error.as_json()["error"]["reason"]
            is_outdated = reason in _OUTDATED_SESSION
            # Who names no session where the server asks who calls gets one by registering.
            is_nameless = not message.session_id and reason == "INVALID_FIELD"
            if reason != _UNKNOWN and not is_outdated and not is_nameless:
                raise
            if reason == _UNKNOWN and not self._settings.auto_recreate:
                return _unknown(name)
            return await self._recreate(body, name, request.headers)
        if found is not None:
            self._sessions.hear(found, is_replica=answer.is_replica)
        elif answer.entry.replicas:
            self._sessions.adopt(named_key, key, self._processes_of(answer.entry))
        return self._ok(bodies.POOL, answer.entry.name)

    def _processes_of(self, entry: registry_pb2.RegistryEntry) -> Iterator[tuple[str, int, bool]]:
        """For `PoolSessions.adopt`. The one that has the name goes on without a session id."""
        yield "", 0, False
        for replica in entry.replicas:
            ago_ms = self._clock.wall_ms() - replica.last_seen_time.ToMilliseconds()
            yield replica.session_id, max(ago_ms, 0), True

    async def _recreate(self, body: Body, name: str, headers: Headers) -> Response:
        """Register a pool by its heartbeat: these clients never register again by themselves."""
        registration = bodies.registration_of_heartbeat(body, name, self._settings)
        given = await self._register(registration, headers, is_new=False)
        return self._ok(bodies.POOL, given, status="recreated", runtime=registration.runtime)

    async def _deregister(self, request: Request, default_kind: str) -> Response:
        body = await self._body(request)
        kind = bodies.kind_of(body, default_kind)
        name = bodies.name_of(body)
        named_key = bodies.key_of(kind, name)
        found = self._sessions.leaving(current_client.get().address, named_key)
        message = registry_service_pb2.DeregisterRequest(
            namespace=self._settings.namespace,
            worker_instance_key=found.key if found else named_key,
            session_id=found.session_id if found else "",
            reason="deregistered",
        )
        try:
            await self._call(_REGISTRY["Deregister"], message, request.headers)
        except HttpError as error:
            if error.as_json()["error"]["reason"] not in {_UNKNOWN, "WORKER_NOT_FOUND", *_OUTDATED_SESSION}:
                raise  # what is unknown or over need not be ended
        if found is not None:
            self._sessions.forget(named_key, found)
        return self._ok(kind, name, component_type=kind, kind=kind)

    # -- reading

    async def _pools(self, request: Request) -> Response:
        runtime = request.query_params.get("runtime", "").strip().lower()
        status = request.query_params.get("status", "").strip().lower()
        asked = registry_service_pb2.ListEntriesRequest(
            namespace=self._settings.namespace, kind=bodies.POOL, status=status, page_size=PAGE_ROWS
        )
        if runtime:
            asked.runtime["type"] = runtime
        rows: list[dict[str, Any]] = []
        bytes_left = POOLS_BYTES_MAX
        while True:
            page = await self._call(_REGISTRY["ListEntries"], asked, request.headers)
            rows += [bodies.row_of(entry) async for entry in in_slices(page.entries, ROWS_PER_SLICE)]
            bytes_left -= page.ByteSize()
            asked.page_token = page.next_page_token
            if not asked.page_token or len(rows) >= ROWS_MAX or bytes_left < 0:
                break
        answer = {"items": rows, "count": len(rows), "runtime": runtime or None, "status": status or None}
        return json_response(json_bytes(answer))

    # -- metrics

    async def _report_metrics(self, request: Request) -> Response:
        body = await self._body(request, METRICS_BODY_BYTES_MAX)
        samples = body.get("metrics")
        if not isinstance(samples, list):
            raise InvalidField(field="metrics", rule="must be a list")
        key = await self._component_key(body, request.headers)
        if key is None:
            return _error(404, f"Component {bodies.text_of(body, 'component_name')!r} is not registered.")
        message = component_metrics_service_pb2.ReportMetricsRequest(
            namespace=self._settings.namespace, worker_instance_key=key
        )
        if len(samples) > SAMPLES_MAX:
            raise InvalidField(field="metrics", rule=f"must have at most {SAMPLES_MAX} elements")
        async for number, sample in in_slices(enumerate(samples), ROWS_PER_SLICE):
            _add_sample(message.samples.add(), sample, f"metrics[{number}]")
        answer = await self._call(_METRICS["ReportMetrics"], message, request.headers)
        stored = {"metrics_inserted": answer.stored_samples}
        return json_response(
            json_bytes(
                {"status": "ok", "runtime_id": bodies.runtime_id(self._settings.namespace, key), **stored}
            )
        )

    async def _component_key(self, body: Body, headers: Headers) -> str | None:
        """The worker key of the component that a report is about. Reports of one pool name several types, such as
        "queue_worker"; so the name decides, and the type only between equal names."""
        name = bodies.text_of(body, "component_name", "name", required=True)
        told = bodies.text_of(body, "component_type", "kind")
        for kind in dict.fromkeys((*((told,) if told in _KINDS_WITH_METRICS else ()), *_KINDS_WITH_METRICS)):
            asked = registry_service_pb2.GetEntryRequest(
                namespace=self._settings.namespace, worker_instance_key=bodies.key_of(kind, name)
            )
            try:
                await self._call(_REGISTRY["GetEntry"], asked, headers)
            except HttpError as error:
                if error.code != 404:
                    raise
            else:
                return asked.worker_instance_key
        return None

    async def _query_metrics(self, request: Request) -> Response:
        asked_for = request.query_params
        limit = _limit(asked_for.get("limit", ""))
        asked = component_metrics_service_pb2.QueryMetricsRequest(
            namespace=self._settings.namespace,
            name=asked_for.get("metric_name", ""),
            page_size=SERIES_PER_PAGE,
        )
        name = asked_for.get("component_name", "")
        if name:
            key = await self._component_key(
                {"component_name": name, "component_type": asked_for.get("component_type", "")},
                request.headers,
            )
            if key is None:
                return _error(404, f"Component {name!r} is not registered.")
            asked.worker_instance_key = key
        for field, target in (("start_time", asked.start_time), ("end_time", asked.end_time)):
            if text := asked_for.get(field, ""):
                _read_time(text, field, target)
        rows: list[dict[str, Any]] = []
        bytes_left = METRICS_ANSWER_BYTES_MAX
        while True:
            page = await self._call(_METRICS["QueryMetrics"], asked, request.headers)
            async for series in in_slices(page.series, 2):
                if bytes_left > 0:
                    found = self._metric_rows(series, asked_for.get("metric_type", ""))
                    bytes_left -= len(found) * (ROW_BYTES + _text_bytes(series))
                    rows += found
            asked.page_token = page.next_page_token
            if not asked.page_token or len(rows) >= POINTS_MAX or bytes_left <= 0:
                break
        rows.sort(key=lambda row: row["timestamp"], reverse=True)
        rows = rows[:limit]
        return json_response(json_bytes({"metrics": rows, "count": len(rows), "limit": limit}))

    def _metric_rows(
        self, series: component_metrics_service_pb2.MetricSeries, metric_type: str
    ) -> list[dict[str, Any]]:
        is_counter = series.type == component_metrics_service_pb2.METRIC_TYPE_COUNTER
        kind_of_metric = "counter" if is_counter else "gauge"
        if metric_type and metric_type != kind_of_metric:
            return []
        kind, _, name = series.worker_instance_key.partition(":")
        return [
            {
                "runtime_id": bodies.runtime_id(self._settings.namespace, series.worker_instance_key),
                "component_name": name,
                "component_type": kind,
                "metric_name": series.name,
                "metric_type": kind_of_metric,
                "metric_value": point.value,
                "labels": dict(series.labels) or None,
                "help_text": series.help or None,
                "unit": series.unit or None,
                "timestamp": point.time.ToJsonString(),
            }
            for point in series.points
        ]

    # -- all of them

    def _guarded(self, handle: Handle) -> RequestHandler:
        async def guarded(request: Request) -> Response:
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    return await handle(request)
            except TimeoutError:
                return _error(504, "There is too much to read in time; ask for less.")
            except LivenessError as error:
                return _from_http_error(from_error(error))
            except HttpError as error:
                return _from_http_error(error)

        return guarded

    async def _body(self, request: Request, bytes_max: int = BODY_BYTES_MAX) -> Body:
        check_content_type(request.headers)
        async with self._body_reader.read(request, bytes_max) as content:
            return bodies.parse_body(content)

    async def _call(self, method: MethodDescriptor, message: Message, headers: Headers) -> Any:
        try:
            return await self._grpc_client.start_call(method, message, headers, CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error

    def _ok(self, kind: str, name: str, /, status: str = "ok", **more: str) -> Response:
        id = bodies.runtime_id(self._settings.namespace, bodies.key_of(kind, name))
        return json_response(json_bytes({"status": status, "name": name, **more, "runtime_id": id}))


def _from_http_error(error: HttpError) -> Response:
    return _error(error.code, error.as_json()["error"]["message"], error.headers)


def _error(code: int, detail: object, headers: Mapping[str, str] | None = None) -> Response:
    return json_response(json_bytes({"detail": detail}), code, headers)


def _unknown(name: str) -> Response:
    return _error(404, {"status": "unknown", "name": name}, {"Retry-After": str(RETRY_AFTER_S)})


def _add_sample(sample: component_metrics_service_pb2.MetricSample, told: Any, field: str) -> None:
    if not isinstance(told, dict):
        raise InvalidField(field=field, rule="must be an object")
    value = told.get("metric_value", told.get("value"))
    # An integer may have more digits than a float can hold.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= VALUE_MAX:
        raise InvalidField(
            field=f"{field}.metric_value", rule=f"must be a number between -{VALUE_MAX:g} and {VALUE_MAX:g}"
        )
    sample.name = bodies.text_of(told, "metric_name", "name", required=True)
    sample.value = value
    is_counter = bodies.text_of(told, "metric_type", "type").lower() == "counter"
    sample.type = (
        component_metrics_service_pb2.METRIC_TYPE_COUNTER if is_counter else component_metrics_service_pb2.METRIC_TYPE_GAUGE
    )  # fmt: skip
    labels = told.get("labels")
    if labels is not None and not (isinstance(labels, dict) and len(labels) <= LABELS_MAX):
        raise InvalidField(field=f"{field}.labels", rule=f"must be a map of at most {LABELS_MAX} labels")
    for name, label in (labels or {}).items():
        if name not in _FLEETING_LABELS:
            sample.labels[name] = label if isinstance(label, str) else str(label)
    sample.unit = bodies.text_of(told, "unit")
    sample.help = bodies.text_of(told, "help_text", "help")
    if (time := bodies.text_of(told, "timestamp", "time")) and _has_zone(time):
        _read_time(
            time, f"{field}.timestamp", sample.time
        )  # without a zone it is the client's local time, and means now


def _read_time(text: str, field: str, target: Timestamp) -> None:
    """A time without a zone is UTC."""
    try:
        target.FromJsonString(text.replace(" ", "T") + ("" if _has_zone(text) else "Z"))
    except ValueError:
        raise InvalidField(field=field, rule="must be a time such as 2026-01-02T03:04:05Z") from None


def _has_zone(time: str) -> bool:
    return time[-1:] in "zZ" or "+" in time[10:] or "-" in time[10:]


def _text_bytes(series: component_metrics_service_pb2.MetricSeries) -> int:
    """What each row of a series repeats."""
    labels = sum(len(name) + len(value) for name, value in series.labels.items())
    return labels + len(series.help) + len(series.name) + len(series.worker_instance_key)


def _limit(text: str) -> int:
    if not text:
        return POINTS_DEFAULT
    if not (text.isascii() and text.isdecimal() and len(text) <= 6 and 1 <= int(text) <= POINTS_MAX):
        raise InvalidField(field="limit", rule=f"must be a whole number from 1 to {POINTS_MAX}")
    return int(text)


def noetl_door(settings: NoetlSettings, clock: Clock) -> Callable[[GrpcClient, BodyReader], PathHandlers]:
    """The door as `HttpServer` opens it."""

    def open_door(grpc_client: GrpcClient, body_reader: BodyReader) -> PathHandlers:
        return NoetlPaths(settings, clock, grpc_client, body_reader).handlers()

    return open_door
