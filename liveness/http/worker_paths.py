"""The worker paths of Nomarr, answered from the components of a namespace:

    GET  /api/web/worker/status   one row for each component
    POST /api/web/worker/restart  restart all components, those of one group, or some of them
    GET  /api/v1/info             whether components run and take jobs

They are calls of ComponentService in another form, with the same rights. Parameters and bodies are those of ListComponents,
OrderComponents and GetServerInfo, but the namespace may be left out.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlencode

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from liveness.domain.errors import InvalidField, PermissionDenied
from liveness.http.app import PathHandlers, json_response
from liveness.http.body_reader import BODY_BYTES_MAX, BodyReader
from liveness.http.endpoints import WHOLE_BODY, Endpoint, Match
from liveness.http.errors import from_error, from_rpc_error, http_error
from liveness.http.grpc_client import DEFAULT_TIMEOUT_S, GrpcClient, requested_timeout_s
from liveness.http.guard import check_content_type
from liveness.http.json_output import json_bytes
from liveness.http.schemas import Schema
from liveness.http.transcoding import build_request
from liveness.v1 import (
    access_pb2,
    admin_pb2,
    component_pb2,
    component_service_pb2,
    service_pb2,
    token_pb2,
)

NAMESPACE = "default"
ROWS_MAX = 1_000
COUNTED_MAX = 10_000
PAGE_ROWS = 100
"""Converting a page takes a millisecond or two, and heartbeats wait meanwhile."""
PAGES_MAX = 200
"""With a filter, a page may have few rows or none."""
GROUPS_MAX = 100

_CALLS = component_service_pb2.DESCRIPTOR.services_by_name["ComponentService"].methods_by_name
_GET_SERVER_INFO = service_pb2.DESCRIPTOR.services_by_name["LivenessService"].methods_by_name["GetServerInfo"]
_CAN_I = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].methods_by_name["CanI"]
_RESTARTS = (component_pb2.COMPONENT_ACTION_RESTART, component_pb2.COMPONENT_ACTION_ROLLING_RESTART)
_WITH_PROCESS = frozenset(("starting", "healthy", "paused", "stopping"))

_STATUSES = [number for number in component_pb2.ComponentStatus.values() if number]


def _word(status: int) -> str:
    name = component_pb2.ComponentStatus.Name(status)  # type: ignore[arg-type]
    return name.removeprefix("COMPONENT_STATUS_").lower()


STATUS = Endpoint(_CALLS["ListComponents"], "GET", "/api/web/worker/status", (), "")
RESTART = Endpoint(_CALLS["OrderComponents"], "POST", "/api/web/worker/restart", (), WHOLE_BODY)
INFO = Endpoint(_GET_SERVER_INFO, "GET", "/api/v1/info", (), "")


class Path(NamedTuple):
    """A path as the OpenAPI document describes it."""

    endpoint: Endpoint
    name: str
    summary: str
    description: str
    answer: Schema


def _object(**properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_FLAG: Schema = {"type": "boolean"}
_TIME: Schema = {"type": ["integer", "null"], "description": "Seconds since 1970."}

PATHS = (
    Path(
        STATUS,
        "WorkerStatus",
        "Worker status",
        "Each component as one row. The namespace is `default` unless a parameter names another. If more follow, the header "
        "Link says where.",
        {
            "type": "array",
            "items": _object(
                component=_TEXT,
                status={"type": "string", "enum": [_word(number) for number in _STATUSES]},
                pid={"type": ["integer", "null"]},
                current_job={"type": ["string", "null"]},
                restart_count=_COUNT,
                last_restart=_TIME,
                last_seen=_TIME,
                created_at=_TIME,
                paused=_FLAG,
                details={"type": "object", "description": "What the process tells about itself."},
            ),
        },
    ),
    Path(
        RESTART,
        "WorkerRestart",
        "Worker restart",
        "Restarts all components of the namespace `default`, without a body; the body may name another namespace, a group, or "
        "some of its components. Earlier restarts no longer count, and what has failed starts. The action is RESTART or "
        "ROLLING_RESTART.",
        _object(
            status={"const": "success"},
            message=_TEXT,
            orders={"type": "array", "items": _object(group=_TEXT, order_number=_TEXT, supervised=_FLAG)},
        ),
    ),
    Path(
        INFO,
        "WorkerInfo",
        "Worker info",
        "Whether components run and take jobs. `worker_enabled` is false if all are paused. At most 10,000 are counted.",
        _object(
            version=_TEXT,
            config=_object(namespace=_TEXT, worker_enabled=_FLAG, worker_count=_COUNT),
            worker=_object(
                enabled=_FLAG,
                alive={**_FLAG, "description": "Whether a component has a process."},
                last_heartbeat={"type": ["number", "null"], "description": "Seconds since 1970."},
                statuses={
                    "type": "object",
                    "additionalProperties": _COUNT,
                    "description": "How many have each status.",
                },
            ),
        ),
    ),
)


class WorkerPaths:
    def __init__(self, grpc_client: GrpcClient, body_reader: BodyReader) -> None:
        self._grpc_client = grpc_client
        self._body_reader = body_reader

    def handlers(self) -> PathHandlers:
        return {
            STATUS.template: {"GET": self._status},
            INFO.template: {"GET": self._info},
            RESTART.template: {"POST": self._restart},
        }

    # -- reading

    async def _status(self, request: Request) -> Response:
        listing: Any = build_request(Match(STATUS, ()), _query(request), b"")
        listing.namespace = listing.namespace or NAMESPACE
        if not 0 <= listing.page_size <= ROWS_MAX:
            raise InvalidField(field="page_size", rule=f"must be 0 (for {ROWS_MAX}) to {ROWS_MAX}")
        rows: list[dict[str, Any]] = []
        async with _deadline(request.headers):
            async for page in self._pages(listing, request.headers, listing.page_size or ROWS_MAX):
                rows += map(row_of, page)
        return json_response(json_bytes(rows), headers=_link_to_next(request, listing.page_token))

    async def _info(self, request: Request) -> Response:
        asked: Any = build_request(Match(INFO, ()), _query(request), b"")
        asked.namespace = asked.namespace or NAMESPACE
        listing = component_service_pb2.ListComponentsRequest(namespace=asked.namespace)
        statuses: Counter[str] = Counter()
        is_enabled, last_seen = False, 0.0
        async with _deadline(request.headers):
            server = await self._call(_GET_SERVER_INFO, asked, request.headers)
            async for page in self._pages(listing, request.headers, COUNTED_MAX):
                for component in page:
                    statuses[_word(component.status)] += 1
                    is_enabled = is_enabled or not component.paused
                    last_seen = max(last_seen, component.last_seen_time.ToMilliseconds() / 1_000)
        is_enabled = is_enabled or not statuses
        answer = {
            "version": server.version,
            "config": {
                "namespace": asked.namespace,
                "worker_enabled": is_enabled,
                "worker_count": statuses.total(),
            },
            "worker": {
                "enabled": is_enabled,
                "alive": not _WITH_PROCESS.isdisjoint(statuses),
                "last_heartbeat": last_seen or None,
                "statuses": dict(sorted(statuses.items())),
            },
        }
        return json_response(json_bytes(answer))

    async def _pages(
        self, listing: Any, headers: Headers, rows_max: int
    ) -> AsyncIterator[Sequence[component_pb2.Component]]:
        """Yield pages of components, `rows_max` in all. Afterwards `listing` has the token of what follows."""
        rows = 0
        for _ in range(PAGES_MAX):
            listing.page_size = min(PAGE_ROWS, rows_max - rows)
            page = await self._call(_CALLS["ListComponents"], listing, headers)
            listing.page_token = page.next_page_token
            rows += len(page.components)
            yield page.components
            if not listing.page_token or rows >= rows_max:
                return

    # -- restarting

    async def _restart(self, request: Request) -> Response:
        async with self._body_reader.read(request, BODY_BYTES_MAX) as body:
            check_content_type(request.headers, has_body=bool(body))
            order: Any = build_request(Match(RESTART, ()), _query(request), body)
        order.namespace = order.namespace or NAMESPACE
        order.action = order.action or component_pb2.COMPONENT_ACTION_RESTART
        if order.action not in _RESTARTS:
            raise InvalidField(field="action", rule="must be RESTART or ROLLING_RESTART here")
        if order.component_ids and not order.group:
            raise InvalidField(field="group", rule="must be the group of the component_ids")
        async with _deadline(request.headers):
            groups = [order.group] if order.group else await self._groups(order.namespace, request.headers)
            given = [await self._restart_group(order, group, request.headers) for group in groups]
        answer = {"status": "success", "message": _message(given), "orders": given}
        return json_response(json_bytes(answer))

    async def _groups(self, namespace: str, headers: Headers) -> list[str]:
        """All groups. Who may not restart them does not learn whether there are any."""
        asked = token_pb2.CanIRequest(role=access_pb2.ROLE_OPERATOR, target_namespace=namespace)
        if not (await self._call(_CAN_I, asked, headers)).allowed:
            where = f"namespace {namespace}"
            raise from_error(PermissionDenied(principal="The caller", role="operator", where=where))
        listing = component_service_pb2.ListComponentGroupsRequest(
            namespace=namespace, page_size=GROUPS_MAX + 1
        )
        page = await self._call(_CALLS["ListComponentGroups"], listing, headers)
        if len(page.groups) > GROUPS_MAX or page.next_page_token:
            raise InvalidField(
                field="group",
                rule=f"must be set, because namespace {namespace} has more than {GROUPS_MAX} groups",
            )
        if not page.groups:
            raise http_error(
                404,
                grpc.StatusCode.NOT_FOUND,
                "COMPONENT_GROUP_NOT_FOUND",
                f"No supervisor ever ran a group in namespace {namespace}.",
                namespace=namespace,
            )
        return [group.group for group in page.groups]

    async def _restart_group(self, order: Any, group: str, headers: Headers) -> dict[str, Any]:
        """Restart it and forget earlier restarts: who restarts by hand has looked after the cause."""
        order.group = group
        answer = await self._call(_CALLS["OrderComponents"], order, headers)
        reset = component_service_pb2.OrderComponentsRequest()
        reset.CopyFrom(order)
        reset.action = component_pb2.COMPONENT_ACTION_RESET
        last = await self._call(_CALLS["OrderComponents"], reset, headers)
        return {"group": group, "order_number": str(last.order_number), "supervised": answer.supervised}

    async def _call(self, method: MethodDescriptor, request: Message, headers: Headers) -> Any:
        try:
            return await self._grpc_client.start_call(method, request, headers, DEFAULT_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error


def row_of(component: component_pb2.Component) -> dict[str, Any]:
    """Times are whole seconds since 1970; what is not known is null."""
    return {
        "component": component.component_id,
        "status": _word(component.status),
        "pid": component.process_id or None,
        "current_job": component.current_job or None,
        "restart_count": component.restart_count,
        "last_restart": _seconds(component, "last_restart_time"),
        "last_seen": _seconds(component, "last_seen_time"),
        "created_at": _seconds(component, "create_time"),
        "paused": component.paused,
        "details": json.loads(component.details_json or "{}"),
    }


def _seconds(component: component_pb2.Component, field: str) -> int | None:
    if not component.HasField(field):  # type: ignore[arg-type]
        return None
    stamp: Timestamp = getattr(component, field)
    return stamp.seconds


def _message(given: Sequence[Mapping[str, Any]]) -> str:
    waiting = [each["group"] for each in given if not each["supervised"]]
    text = f"{len(given)} {'group is' if len(given) == 1 else 'groups are'} told to restart."
    if waiting:
        text += f" No supervisor runs {', '.join(waiting[:3])}{' and others' if waiting[3:] else ''} now; the next one will do it."
    return text


def _query(request: Request) -> str:
    query: bytes = request.scope["query_string"]
    return query.decode("latin-1")


def _link_to_next(request: Request, page_token: str) -> dict[str, str]:
    """The header that says where the rest of a list is."""
    if not page_token:
        return {}
    kept = [
        (name, value)
        for name, value in request.query_params.multi_items()
        if name not in ("page_token", "pageToken")
    ]
    return {"Link": f'<{STATUS.template}?{urlencode([*kept, ("page_token", page_token)])}>; rel="next"'}


@asynccontextmanager
async def _deadline(headers: Headers) -> AsyncIterator[None]:
    """Limit the calls for one request, all together."""
    try:
        async with asyncio.timeout(requested_timeout_s(headers) or DEFAULT_TIMEOUT_S):
            yield
    except TimeoutError:
        message = "The components could not be read or restarted in time; try again, or set X-Timeout."
        raise http_error(504, grpc.StatusCode.DEADLINE_EXCEEDED, "", message) from None
