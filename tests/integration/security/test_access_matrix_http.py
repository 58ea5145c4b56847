"""The same as `test_access_matrix`, over HTTP: every annotated route, called with every role."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor

from liveness.cli.http_listener import bind_http, start_http
from liveness.clock import SystemClock
from liveness.doors.noetl.paths import noetl_door
from liveness.doors.noetl.settings import NoetlSettings
from liveness.http.endpoints import WHOLE_BODY, Endpoint, endpoints_of
from liveness.http.fields import FieldPath
from liveness.http.openapi import SERVICES
from liveness.http.worker_paths import INFO, RESTART, STATUS
from tests.integration.http.http_client import JSON, Client
from tests.integration.security.auth_harness import AuthHarness
from tests.integration.security.test_access_matrix import (
    INCLUDED,
    METHODS,
    OTHER,
    OWN,
    ROLES,
    is_allowed,
    request_about,
)

ENDPOINTS = tuple(endpoints_of(SERVICES))
INVALID_CREDENTIALS = (
    None,
    "",
    "Bearer",
    "Bearer nonsense",
    "Basic YWRtaW46YWRtaW4=",
    "Bearer lvt_aaaaaaaaaaaa_" + "A" * 43,
    "Bearer a.b.c",
)


class HttpRequest(NamedTuple):
    verb: str
    target: str
    body: bytes


def http_request(endpoint: Endpoint, namespace: str) -> HttpRequest | None:
    """None if the path has a segment for the namespace, which is never empty."""
    if not namespace and any(str(path) == "namespace" for path in endpoint.variables):
        return None
    request = request_about(endpoint.method, namespace)
    in_path = {str(path) for path in endpoint.variables}
    segments = [
        quote(_value(segment, namespace), safe="") if isinstance(segment, FieldPath) else segment
        for segment in endpoint.segments
    ]
    rest = {
        name: value
        for name, value in json_format.MessageToDict(request, preserving_proto_field_name=True).items()
        if name not in in_path
    }
    body = b""
    if endpoint.body == WHOLE_BODY:
        body, rest = json.dumps(rest).encode(), {}
    elif endpoint.body:
        body = json.dumps(rest.pop(endpoint.body, {})).encode()
    query = {name: value for name, value in rest.items() if isinstance(value, str)}
    target = "/" + "/".join(segments) + (f"?{urlencode(query)}" if query else "")
    return HttpRequest(endpoint.verb, target, body)


def _value(path: FieldPath, namespace: str) -> str:
    if str(path) == "namespace":
        return namespace
    if path.leaf.enum_type is not None:
        return str(path.leaf.enum_type.values[1].name)
    return "w" if path.leaf.cpp_type == FieldDescriptor.CPPTYPE_STRING else "1"


async def ask(client: Client, request: HttpRequest, authorization: str | None) -> tuple[int, str]:
    """The HTTP code, and the reason if the request was refused. Of a stream of events, only the head is read."""
    headers = {} if authorization is None else {"Authorization": authorization}
    if request.verb != "GET":
        headers |= JSON
    async with client.connect() as connection:
        await connection.send(request.verb, request.target, headers, request.body)
        code, answered = await connection.head()
        if code == 200:
            return code, "OK"
        content = json.loads(await connection.reader.readexactly(int(answered["content-length"])))
    reason = content["error"]["reason"]
    assert code != 500, (request, content)
    assert (code == 401) == (reason == "UNAUTHENTICATED"), (request, content)
    assert code == 403 or reason != "PERMISSION_DENIED", (request, content)
    return code, reason


def requests() -> Iterator[tuple[Endpoint, str, HttpRequest]]:
    for endpoint in ENDPOINTS:
        for namespace in (OWN, OTHER, ""):
            if (request := http_request(endpoint, namespace)) is not None:
                yield endpoint, namespace, request


async def check_role(client: Client, token: str, role: str, granted: str) -> None:
    wrong = []
    for endpoint, namespace, request in requests():
        code, reason = await ask(client, request, f"Bearer {token}")
        allowed = is_allowed(endpoint.method, role, granted, namespace)
        if (reason != "PERMISSION_DENIED") != allowed or code == 401:
            wrong.append((endpoint.verb, request.target, code, reason, allowed))
    assert wrong == []
    assert [each async for each in wrong_worker_paths(client, token, role, granted)] == []
    reads_all = granted == "*" and role in ("reader", "operator", "admin")
    code, _ = await ask(client, HttpRequest("GET", "/metrics", b""), f"Bearer {token}")
    assert code == (200 if reads_all else 403)


async def wrong_worker_paths(
    client: Client, token: str, role: str, granted: str
) -> AsyncIterator[tuple[HttpRequest, int, str]]:
    """Those that ask about a namespace in another form than the contract."""
    for request, namespace, wanted in worker_path_requests():
        code, reason = await ask(client, request, f"Bearer {token}")
        allowed = wanted in INCLUDED[role] and granted in ("*", namespace)
        if (reason != "PERMISSION_DENIED") != allowed or code == 401:
            yield request, code, reason


def worker_path_requests() -> Iterator[tuple[HttpRequest, str, str]]:
    """Requests, the namespace that each is about, and the role that it needs."""
    for namespace in (OWN, OTHER, "default"):
        for path in (STATUS.template, INFO.template):
            target = path if namespace == "default" else f"{path}?namespace={namespace}"
            yield HttpRequest("GET", target, b""), namespace, "READER"
        for body in ({}, {"group": "images"}):
            about = body if namespace == "default" else {**body, "namespace": namespace}
            yield HttpRequest("POST", RESTART.template, json.dumps(about).encode()), namespace, "OPERATOR"


DOOR = NoetlSettings(namespace=OWN)


def door_requests(name: str) -> Iterator[tuple[HttpRequest, str]]:
    """What clients of the NoETL door send about the component of this name, and the role that it takes. The door's namespace is OWN."""
    pool = {"name": name, "runtime": "cpu"}
    for verb, path, body, role in (
        ("POST", "/api/worker/pool/register", pool, "WORKER"),
        ("POST", "/api/worker/pool/heartbeat", pool, "WORKER"),
        ("POST", "/api/runtime/register", {"name": name, "uri": "u"}, "WORKER"),
        ("POST", "/api/runtime/deregister", {"name": name}, "WORKER"),
        ("DELETE", "/api/runtime/deregister", {"name": name}, "WORKER"),
        ("POST", "/api/worker/pool/deregister", pool, "WORKER"),
        ("DELETE", "/api/worker/pool/deregister", pool, "WORKER"),
        ("GET", "/api/worker/pools", None, "READER"),
        ("GET", "/api/metrics/query", None, "READER"),
        # It looks for the component, as readers may, before it reports as a worker.
        ("POST", "/api/metrics/report", {"component_name": name, "metrics": []}, "READER"),
    ):
        yield HttpRequest(verb, path, json.dumps(body).encode() if body else b""), role


async def check_door(client: Client, token: str, role: str, granted: str) -> None:
    wrong = []
    for request, wanted in door_requests(f"pool of {role} {granted}"):  # each principal has its own
        code = await ask_door(client, request, f"Bearer {token}")
        allowed = wanted in INCLUDED[role] and granted in ("*", OWN)
        if (code != 403) != allowed or code in (401, 500):
            wrong.append((request.verb, request.target, code, allowed))
    assert wrong == []


async def ask_door(client: Client, request: HttpRequest, authorization: str | None) -> int:
    headers = dict(JSON) if authorization is None else {"Authorization": authorization, **JSON}
    return (await client.ask(request.verb, request.target, headers, request.body)).code


async def check_without_credential(client: Client) -> None:
    metrics = HttpRequest("GET", "/metrics", b"")
    worker_paths = (
        (None, OWN, request) for request, namespace, _ in worker_path_requests() if namespace == OWN
    )
    for _, namespace, request in (*requests(), *worker_paths, (None, OWN, metrics)):
        if namespace == OWN:
            assert (await ask(client, request, None))[0] == 401, request
    for authorization in INVALID_CREDENTIALS:
        for request in (metrics, HttpRequest("GET", f"/v1/namespaces/{OWN}/workers", b"")):
            assert (await ask(client, request, authorization))[0] == 401, (request, authorization)
    # What probes ask tells nothing.
    for target in ("/healthz", "/readyz"):
        assert (await client.ask("GET", target)).json() == {"status": "SERVING"}


@pytest.fixture(scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[AuthHarness, Client]]:
    harness = AuthHarness(f"sqlite:///{tmp_path_factory.mktemp('matrix')}/liveness.db")
    await harness.start()
    listen_address = bind_http("127.0.0.1:0")
    assert listen_address is not None
    server = harness.server
    http = await start_http(
        server,
        listen_address,
        harness.clock,
        http="127.0.0.1:0",
        hosts=(),
        metrics=server.metrics,
        asks_callers=True,
        doors=[noetl_door(DOOR, harness.clock)],
    )
    yield harness, Client(listen_address.port)
    http.stop_accepting()
    await harness.stop()
    await http.stop()


def test_all_public_methods_but_streams_of_requests_have_a_route() -> None:
    """Otherwise this matrix would leave one out without saying so."""
    routed = {endpoint.method.full_name for endpoint in ENDPOINTS}
    assert {method.full_name for method in METHODS if not method.client_streaming} == routed


@pytest.mark.parametrize("granted", [OWN, "*"])
@pytest.mark.parametrize("role", ROLES)
async def test_each_role_may_do_over_http_what_the_options_say_and_nothing_else(
    node: tuple[AuthHarness, Client], role: str, granted: str
) -> None:
    harness, client = node
    created: Any = await harness.create_token(f"{role}-{granted.replace('*', 'all')}", f"{role}:{granted}")
    await check_role(client, created.secret, role, granted)


@pytest.mark.parametrize("granted", [OWN, OTHER, "*"])
@pytest.mark.parametrize("role", ROLES)
async def test_each_role_may_do_through_a_door_what_it_may_do_elsewhere(
    node: tuple[AuthHarness, Client], role: str, granted: str
) -> None:
    harness, client = node
    name = f"{role}-{granted.replace('*', 'all')}-of-the-door"
    created: Any = await harness.create_token(name, f"{role}:{granted}")
    await check_door(client, created.secret, role, granted)


async def test_nobody_does_anything_over_http_without_a_valid_credential(
    node: tuple[AuthHarness, Client],
) -> None:
    await check_without_credential(node[1])
    for request, _ in door_requests("a"):
        for authorization in INVALID_CREDENTIALS:
            assert await ask_door(node[1], request, authorization) == 401, (request, authorization)


def test_all_paths_of_the_door_are_tried() -> None:
    """Otherwise this matrix would leave one out without saying so."""
    unused: Any = None
    handlers = noetl_door(DOOR, SystemClock())(unused, unused)
    tried = {(request.target, request.verb) for request, _ in door_requests("a")}
    assert tried == {(path, verb) for path, of_path in handlers.items() for verb in of_path}


async def test_two_credentials_in_one_request_are_refused(node: tuple[AuthHarness, Client]) -> None:
    """A proxy may have checked the other one."""
    harness, client = node
    async with client.connect() as connection:
        lines = f"Authorization: Bearer {harness._admin_token}\r\n" * 2
        connection.writer.write(
            f"GET /v1/namespaces/{OWN}/workers HTTP/1.1\r\nHost: {connection.host}\r\n{lines}\r\n".encode()
        )
        assert (await connection.answer()).code == 401
