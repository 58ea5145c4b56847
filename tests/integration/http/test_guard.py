"""Only the server's own pages may use it through a browser."""

from __future__ import annotations

import socket

import pytest
from starlette.datastructures import Headers

from liveness.http.errors import HttpError
from liveness.http.guard import Guard
from tests.integration.http.http_client import JSON, Client
from tests.integration.http.http_harness import HttpHarness

HEARTBEAT = "/v1/namespaces/orders/workers/w/heartbeat"
EXPECTED = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


@pytest.mark.parametrize("target", ["/", "/v1/server", "/healthz", "/nowhere", "/openapi.json", "/v1/events"])
async def test_every_answer_has_strict_security_headers(client: Client, target: str) -> None:
    async with client.connect() as http_connection:
        await http_connection.send("GET", target)
        _, headers = await http_connection.head()
    assert EXPECTED.items() <= headers.items()
    assert not [name for name in headers if name.startswith("access-control-") or name == "server"]


async def test_an_unknown_host_is_refused_and_the_setting_is_named(client: Client) -> None:
    answer = await client.ask("GET", "/v1/server", {"Host": "evil.example"})
    assert (answer.code, answer.error["reason"]) == (421, "HOST_NOT_ALLOWED")
    assert "--http-hosts" in answer.error["message"]
    assert (await client.ask("GET", "/", {"Host": "evil.example"})).code == 421
    assert (await client.ask("GET", "/healthz", {"Host": "10.1.2.3:7480"})).code == 200


def is_admitted(guard: Guard, host: str) -> bool:
    try:
        guard.check_host(Headers({"host": host}))
    except HttpError:
        return False
    return True


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:7480", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:7480"]
)
def test_loopback_hosts_are_always_allowed(host: str) -> None:
    assert is_admitted(Guard(()), host)


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "localhost.evil.example", "evil@localhost", "localhost:x", "127.0.0.1.nip.io", "localhost/", "[::1",
     "10.0.0.7", "[fe80::1]", "localhost localhost", "localhost."],
)  # fmt: skip
def test_other_hosts_are_refused(host: str) -> None:
    assert not is_admitted(Guard(("liveness.internal",)), host)


def test_configured_hosts_are_allowed() -> None:
    guard = Guard(("Node-1",), proxy_hosts=("liveness.example",))
    assert is_admitted(guard, "node-1:7480")
    assert is_admitted(guard, "Liveness.Example")


def test_a_server_on_all_interfaces_allows_any_address_but_not_any_name() -> None:
    guard = Guard(("node-1",), allow_any_ip=True)
    assert is_admitted(guard, "10.0.0.7:7480")
    assert is_admitted(guard, "[fe80::1]:7480")
    assert not is_admitted(guard, "evil.example")


async def test_a_server_on_all_interfaces_allows_the_name_of_its_machine(
    stopped_harness: HttpHarness,
) -> None:
    await stopped_harness.open(host="0.0.0.0", hosts=("liveness.example",))
    for host in (socket.gethostname(), "liveness.example", "10.0.0.7"):
        assert (await stopped_harness.client.ask("GET", "/v1/server", {"Host": host})).code == 200
    assert (await stopped_harness.client.ask("GET", "/v1/server", {"Host": "evil.example"})).code == 421
    assert stopped_harness.http_server.url == f"http://127.0.0.1:{stopped_harness.port}/"


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "http://localhost:1", "http://127.0.0.1", "file://", "", "http://[", "http://127.0.0.1:PORT.x"],
)  # fmt: skip
@pytest.mark.parametrize("verb", ["GET", "POST"])
async def test_pages_of_other_origins_may_neither_read_nor_write(
    client: Client, verb: str, origin: str
) -> None:
    target = HEARTBEAT if verb == "POST" else "/v1/events"
    headers = {**JSON, "Origin": origin.replace("PORT", str(client.port))}
    answer = await client.ask(verb, target, headers, b"{}" if verb == "POST" else b"")
    assert (answer.code, answer.error["reason"]) == (403, "ORIGIN_NOT_ALLOWED")


def test_a_second_origin_header_is_checked() -> None:
    lines = [(b"host", b"localhost"), (b"origin", b"http://localhost"), (b"origin", b"http://evil.example")]
    Guard(()).check_origin("GET", Headers(raw=lines[:2]))
    with pytest.raises(HttpError):
        Guard(()).check_origin("GET", Headers(raw=lines))


async def test_the_servers_own_pages_are_allowed(stopped_harness: HttpHarness) -> None:
    await stopped_harness.open(hosts=("liveness.example",))
    client = stopped_harness.client
    own = {"Origin": f"http://127.0.0.1:{client.port}", "Sec-Fetch-Site": "same-origin"}
    assert (await client.ask("POST", HEARTBEAT, {**JSON, **own}, b"{}")).code == 200
    assert (await client.ask("GET", "/v1/server", own)).code == 200
    # Behind a TLS proxy that forwards the host name or does not.
    for host in ("liveness.example", f"127.0.0.1:{client.port}"):
        proxy_hosts = {"Origin": "https://liveness.example", "Host": host}
        assert (await client.ask("POST", HEARTBEAT, {**JSON, **proxy_hosts}, b"{}")).code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_fetch_metadata_of_the_browser_is_checked(client: Client, site: str) -> None:
    foreign = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
    assert (await client.ask("GET", "/v1/server", foreign)).code == 403
    assert (await client.ask("POST", HEARTBEAT, {**JSON, **foreign}, b"{}")).code == 403
    link = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert (await client.ask("GET", "/", link)).code == 200, "following a link is allowed"
    assert (await client.ask("POST", HEARTBEAT, {**JSON, **link}, b"{}")).code == 403
    frame = {**link, "Sec-Fetch-Dest": "iframe"}
    assert (await client.ask("GET", "/", frame)).code == 403


@pytest.mark.parametrize(
    "headers",
    [{}, {"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"},
     {"Content-Type": "multipart/form-data; boundary=x"}, {"Content-Type": "text/plain; application/json"},
     {"Content-Type": "application/json; charset=latin-1"}, {"Content-Type": "application/json", "Content-Encoding": "gzip"}],
)  # fmt: skip
async def test_content_types_that_a_form_can_send_are_refused(
    http_harness: HttpHarness, headers: dict[str, str]
) -> None:
    answer = await http_harness.client.ask("POST", HEARTBEAT, headers, b"{}")
    assert answer.code == 415
    assert (await http_harness.harness.count()) == {}


async def test_json_with_a_utf_8_charset_is_accepted(client: Client) -> None:
    headers = {"Content-Type": 'Application/JSON; charset="UTF-8"'}
    assert (await client.ask("POST", HEARTBEAT, headers, b"{}")).code == 200
