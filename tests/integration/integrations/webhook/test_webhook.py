"""Reschedules sent to another engine: the request, the accepted answers, and the handling of failures."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from ssl import PROTOCOL_TLS_SERVER, SSLContext
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.clock import ManualClock, SystemClock
from liveness.config.settings import Settings, SettingsError
from liveness.domain.activity import Activity, ActivityState, ReleasedAttempt
from liveness.domain.keys import ActivityKey
from liveness.domain.reactions import ActivityRescheduleTask
from liveness.domain.worker import BoundActivity
from liveness.integrations.reschedule_message import delivery_id
from liveness.integrations.webhook import sink as webhook_sink
from liveness.integrations.webhook.signature import sign, verify_signature
from liveness.integrations.webhook.sink import WebhookFailed, WebhookSink, sink_selector
from liveness.tasks.queue_runner import DELIVERY_TIMEOUT_S
from liveness.v1 import activity_pb2, admin_pb2
from liveness.version import VERSION
from tests.free_ports import free_port
from tests.integration.engine.engine import activity as bound
from tests.integration.engine.engine import duration
from tests.integration.server.server_harness import NAMESPACE, ServerHarness

SECRET = "correct horse battery staple"
NOW_S = 1_750_000_000
TIMEOUT_S = 10
"""Far longer than any test needs, and shorter than the delivery time-out of the queue."""
RECEIVER_IN_THE_DOCS = Path(__file__).parents[4] / "docs" / "webhook.md"

ACTIVITY = Activity(
    id=ActivityKey("orders", "w/1", "run", "ä").id,
    state=ActivityState.RELEASED,
    attempt=4,
    task_queue="resize",
    token=b"\x00\xff",
    releases=(ReleasedAttempt("worker-1", 7, 3),),
    type="resize",
    input=b"\x00photo\xfe",
    input_encoding="binary/plain",
)
KEY = ActivityKey("orders", *ACTIVITY.id)
TASK = ActivityRescheduleTask(
    "orders", BoundActivity(*ACTIVITY.id, 3, "resize", ACTIVITY.token), "worker-1", 7
)


class Request(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes

    def verifies(self, secret: str = SECRET, now: float = NOW_S) -> bool:
        return verify_signature(secret, self.headers["Liveness-Signature"], self.body, now)


class Receiver:
    """Another engine: a real HTTP server that records the requests."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answer: Callable[[BaseHTTPRequestHandler], None] = answering(204)
        self.released = threading.Event()
        self.url = ""

    def hang(self, handler: BaseHTTPRequestHandler) -> None:
        self.released.wait(TIMEOUT_S)


def answering(status: int, body: bytes = b"", **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


@contextmanager
def http_server(
    handler: type[BaseHTTPRequestHandler], port: int = 0, tls: SSLContext | None = None
) -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def receiving(port: int = 0, tls: SSLContext | None = None) -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.requests.append(Request(self.path, dict(self.headers), body))
            receiver.answer(self)

        def log_message(self, *args: object) -> None:
            pass

    with http_server(Handler, port, tls) as port_taken:
        receiver.url = f"{'https' if tls else 'http'}://127.0.0.1:{port_taken}"
        try:
            yield receiver
        finally:
            receiver.released.set()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def sink_to(url: str, timeout_s: float = 10.0) -> WebhookSink:
    return WebhookSink(url, SECRET, timeout_s, ManualClock(NOW_S * 1_000))


async def deliver(sink: WebhookSink, task: ActivityRescheduleTask = TASK) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        await sink.deliver(KEY, ACTIVITY, task)


async def failure(sink: WebhookSink) -> str:
    with pytest.raises(WebhookFailed) as caught:
        await deliver(sink)
    assert SECRET not in str(caught.value)
    return str(caught.value)


# -- requests


async def test_a_delivery_contains_everything_the_other_engine_needs(receiver: Receiver) -> None:
    await deliver(sink_to(receiver.url + "/hooks?team=a%20b"))
    (request,) = receiver.requests
    assert request.path == "/hooks?team=a%20b"
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["User-Agent"] == f"liveness/{VERSION}"
    assert json.loads(request.body) == {
        "delivery": request.headers["Liveness-Delivery"],
        "namespace": "orders",
        "workflow_id": "w/1",
        "run_id": "run",
        "activity_id": "ä",
        "attempt": 4,
        "task_queue": "resize",
        "activity_type": "resize",
        "input": b64encode(b"\x00photo\xfe").decode(),
        "input_encoding": "binary/plain",
        "token": b64encode(b"\x00\xff").decode(),
        "lost_from": {"worker_instance_key": "worker-1", "lease_epoch": 7, "attempt": 3, "died": True},
    }


async def test_a_url_without_a_path_is_sent_to_the_root(receiver: Receiver) -> None:
    await deliver(sink_to(receiver.url))
    await deliver(sink_to(receiver.url + "?a=b"))
    assert [request.path for request in receiver.requests] == ["/", "/?a=b"]


async def test_a_large_input_is_delivered_completely(receiver: Receiver) -> None:
    large = ACTIVITY._replace(input=bytes(range(256)) * 20_000)
    await sink_to(receiver.url).deliver(KEY, large, TASK)
    (request,) = receiver.requests
    assert b64decode(json.loads(request.body)["input"]) == large.input
    assert request.verifies()


async def test_a_repeated_delivery_has_the_same_id_and_a_new_signature(
    receiver: Receiver,
) -> None:
    clock = ManualClock(NOW_S * 1_000)
    sink = WebhookSink(receiver.url, SECRET, 10, clock)
    receiver.answer = answering(500)
    with pytest.raises(WebhookFailed):
        await deliver(sink)
    clock.move(3_600_000)
    receiver.answer = answering(200)
    await deliver(sink)
    first, second = receiver.requests
    assert first.headers["Liveness-Delivery"] == second.headers["Liveness-Delivery"]
    assert first.body == second.body
    assert (first.verifies(), second.verifies()) == (True, False)
    assert second.verifies(now=NOW_S + 3_600)


def loss(cut: tuple[str, ...], attempt: int, epoch: int) -> ActivityRescheduleTask:
    namespace, workflow_id, run_id, activity_id, worker = cut
    lost = BoundActivity(workflow_id, run_id, activity_id, attempt, "queue")
    return ActivityRescheduleTask(namespace, lost, worker, epoch)


@st.composite
def losses_of_one_text(draw: st.DrawFn) -> tuple[ActivityRescheduleTask, ActivityRescheduleTask]:
    """Two losses whose names would be ambiguous if they were joined."""
    text = draw(st.text(alphabet='1",[]\\/ ä', max_size=6))

    def cut() -> tuple[str, ...]:
        ends = sorted(draw(st.lists(st.integers(0, len(text)), min_size=4, max_size=4)))
        return tuple(text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True))

    numbers = st.sampled_from([1, 11, 111])
    return loss(cut(), draw(numbers), draw(numbers)), loss(cut(), draw(numbers), draw(numbers))


@given(losses_of_one_text())
def test_two_deliveries_have_the_same_id_only_for_the_same_loss(
    losses: tuple[ActivityRescheduleTask, ActivityRescheduleTask],
) -> None:
    one, other = losses
    assert (delivery_id(one) == delivery_id(other)) == (one == other)
    assert re.fullmatch("[0-9a-f]{64}", delivery_id(one))


def test_the_delivery_id_does_not_depend_on_how_the_attempt_was_lost() -> None:
    assert delivery_id(TASK._replace(died=False)) == delivery_id(TASK)


# -- signatures


async def test_the_signature_covers_body_time_and_secret(receiver: Receiver) -> None:
    await deliver(sink_to(receiver.url))
    (request,) = receiver.requests
    assert request.headers["Liveness-Signature"].startswith(f"t={NOW_S},v1=")
    assert request.verifies()
    for position in range(len(request.body)):
        flipped = bytearray(request.body)
        flipped[position] ^= 1
        assert not request._replace(body=bytes(flipped)).verifies()
    assert not request.verifies("correct horse battery stable")


@pytest.mark.parametrize(
    ("now", "accepted"),
    [(NOW_S - 301, False), (NOW_S - 300, True), (NOW_S + 300, True), (NOW_S + 300.5, False)],
)
def test_a_signature_is_accepted_only_within_the_tolerance(now: float, accepted: bool) -> None:
    header = sign(SECRET, b"body", NOW_S)
    assert verify_signature(SECRET, header, b"body", now) is accepted
    assert verify_signature(SECRET, header, b"body", NOW_S + 3_600, tolerance_s=3_600)


def test_a_changed_time_invalidates_the_signature() -> None:
    later = sign(SECRET, b"body", NOW_S).replace(f"t={NOW_S}", f"t={NOW_S + 600}")
    assert not verify_signature(SECRET, later, b"body", NOW_S + 600)


V1 = sign(SECRET, b"body", NOW_S).partition(",")[2]


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        V1,
        f"t={NOW_S}",
        f"t={NOW_S},v1=",
        f"t={NOW_S},{V1[:-1]}",
        f"t={NOW_S},{V1}0",
        f"t={NOW_S},{V1.replace('v1', 'v0')}",
        f"t={NOW_S},v1=ä\udcff",
        f"t={NOW_S},t={NOW_S},{V1}",
        f"t={NOW_S}.5,{V1}",
        f"t=+{NOW_S},{V1}",
        f"t={NOW_S}\u0665,{V1}",
        f"t={'9' * 5_000},{V1}",
    ],
)
def test_a_malformed_signature_header_is_refused(header: str | None) -> None:
    assert not verify_signature(SECRET, header, b"body", NOW_S)


def test_additional_signatures_and_unknown_parts_are_ignored() -> None:
    """A sender can therefore change its secret or its signature scheme without breaking receivers."""
    other = sign("another secret of some length", b"body", NOW_S).partition(",")[2]
    assert verify_signature(SECRET, f"t={NOW_S},{other},{V1},v2=x", b"body", NOW_S)
    assert not verify_signature(SECRET, f"t={NOW_S},{other},v2=x", b"body", NOW_S)


def test_an_empty_secret_verifies_nothing() -> None:
    with pytest.raises(ValueError, match="the secret is empty"):
        verify_signature("", sign(SECRET, b"body", NOW_S), b"body", NOW_S)


def test_receivers_import_no_server_code() -> None:
    program = "import sys, liveness.webhooks; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "liveness" in loaded
    assert not loaded & {
        "grpc",
        "google",
        "sqlalchemy",
        "msgspec",
        "structlog",
        "starlette",
        "uvicorn",
        "h11",
    }


# -- answers


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_any_2xx_answer_is_a_success(receiver: Receiver, status: int) -> None:
    receiver.answer = answering(status, b"" if status == 204 else b"taken")
    await deliver(sink_to(receiver.url))


@pytest.mark.parametrize("status", [400, 401, 404, 410, 429, 500, 503])
async def test_any_other_answer_is_a_failure_with_status_and_text(receiver: Receiver, status: int) -> None:
    receiver.answer = answering(status, b"  not\r\n\x1b[31m now " + b"x" * 100_000)
    message = await failure(sink_to(receiver.url + "/key?key=key"))
    assert message == f"{receiver.url} answered {status}: {('not [31m now ' + 'x' * 200)[:200]}"


async def test_an_answer_without_text_is_a_failure_with_its_status(receiver: Receiver) -> None:
    receiver.answer = answering(500)
    assert await failure(sink_to(receiver.url)) == f"{receiver.url} answered 500"


async def test_redirects_are_not_followed(receiver: Receiver) -> None:
    with receiving() as redirect_target:
        receiver.answer = answering(307, Location=redirect_target.url)
        message = await failure(sink_to(receiver.url))
    assert message == f"{receiver.url} answered 307, but redirects are not followed"
    assert (len(receiver.requests), redirect_target.requests) == (1, [])


async def test_proxies_in_the_environment_are_ignored(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    await deliver(sink_to(receiver.url))
    assert len(receiver.requests) == 1


async def test_a_refused_connection_is_reported() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert await failure(sink_to(url + "/key")) == f"{url} cannot be reached: Connection refused"


async def test_an_unknown_host_is_reported() -> None:
    message = await failure(sink_to("http://unknown.invalid"))
    assert re.fullmatch(r"http://unknown\.invalid cannot be reached: \w.+", message)


async def test_a_hanging_receiver_fails_at_the_timeout(receiver: Receiver) -> None:
    receiver.answer = receiver.hang
    assert await failure(sink_to(receiver.url, 0.1)) == f"{receiver.url} did not answer within 0.1 s"


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def raw_server(serve: Serve) -> AsyncIterator[str]:
    """A server that need not speak valid HTTP."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await serve(reader, writer)
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1")
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def raw_answer(answer: bytes, then: Awaitable[Any] | None = None) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        if then is not None:
            await then

    return serve


async def test_a_receiver_that_sends_slowly_cannot_extend_the_timeout() -> None:
    """A time-out per read would restart with each byte."""
    finished = asyncio.Event()

    async def send_slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 204 No Content\r\n")
        while not finished.is_set():
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with raw_server(send_slowly) as url:
        assert await failure(sink_to(url, 0.2)) == f"{url} did not answer within 0.2 s"
        finished.set()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "closed the connection without an answer"),
        (b"SSH-2.0-OpenSSH_9\r\n", "does not speak HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nA: broken off", "does not speak HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nxyz", "does not speak HTTP/1.1"),
        (b"HTTP/1.1 999 Odd\r\n\r\n", "answered 999"),
        (b"x" * 100_000, "answered with a head of more than 16 KiB"),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 10_000, "answered with a head of more than 16 KiB"),
        (b"HTTP/1.1 500 Oh\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nfir\r\n2\r\nst\r\n0\r\n\r\n", "answered 500: first"),
        (b"HTTP/1.1 500 Oh\r\nTransfer-Encoding: chunked\r\n\r\nxyz", "answered 500"),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 50\r\n\r\nbroken off", "answered 500: broken off"),
        (b"HTTP/1.0 502\n\nuntil the end", "answered 502: until the end"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 Busy\r\n\r\n", "answered 503"),
    ],
)  # fmt: skip
async def test_invalid_answers_are_reported_in_one_line(answer: bytes, why: str) -> None:
    async with raw_server(raw_answer(answer)) as url:
        assert await failure(sink_to(url)) == f"{url} {why}"


async def test_a_missing_body_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(webhook_sink, "EXCERPT_WAIT_S", 0.05)
    never = asyncio.Event()
    async with raw_server(raw_answer(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", never.wait())) as url:
        await deliver(sink_to(url))
    async with raw_server(raw_answer(b"HTTP/1.1 410 Gone\r\nContent-Length: 5\r\n\r\n", never.wait())) as url:
        assert await failure(sink_to(url)) == f"{url} answered 410"
    never.set()


async def test_only_the_start_of_an_endless_answer_is_read() -> None:
    never = asyncio.Event()
    endless = (
        b"HTTP/1.1 500 Oh\r\nContent-Length: 1000000000\r\n\r\n" + b"x" * webhook_sink.RESPONSE_BYTES_MAX
    )
    async with raw_server(raw_answer(endless, never.wait())) as url:
        assert await failure(sink_to(url)) == f"{url} answered 500: {'x' * 200}"
    never.set()


async def test_a_cancelled_delivery_leaves_no_connection_and_no_thread() -> None:
    connected, gone = asyncio.Event(), asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await reader.read()
        gone.set()

    threads = threading.active_count()
    async with raw_server(hang) as url, asyncio.timeout(TIMEOUT_S):
        delivering = asyncio.create_task(sink_to(url).deliver(KEY, ACTIVITY, TASK))
        await connected.wait()
        delivering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await delivering
        await gone.wait()
    assert threading.active_count() == threads


async def test_deliveries_beyond_the_connection_limit_wait(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_sink, "CONNECTIONS_MAX", 4)
    lock, open_now, open_most = threading.Lock(), 0, 0

    def count(handler: BaseHTTPRequestHandler) -> None:
        nonlocal open_now, open_most
        with lock:
            open_now += 1
            open_most = max(open_most, open_now)
        receiver.released.wait(0.002)
        with lock:
            open_now -= 1
        answering(204)(handler)

    receiver.answer = count
    sink = sink_to(receiver.url)
    await asyncio.gather(*(deliver(sink) for _ in range(40)))
    assert len(receiver.requests) == 40
    assert 1 < open_most <= 4


async def test_deliveries_that_get_no_connection_fail_in_time(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_sink, "CONNECTIONS_MAX", 1)
    monkeypatch.setattr(webhook_sink, "CONNECTION_WAIT_S", 0.05)
    receiver.answer = receiver.hang
    sink = sink_to(receiver.url, TIMEOUT_S)
    first = asyncio.create_task(deliver(sink))
    await asyncio.sleep(0)
    assert await failure(sink) == f"{receiver.url} is busy: 1 deliveries wait for its answers"
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    receiver.released.set()
    receiver.answer = answering(204)
    await deliver(sink)


def test_the_longest_delivery_ends_before_the_timeout_of_the_queue() -> None:
    longest_s = 20
    Settings(webhook_timeout_s=longest_s)
    with pytest.raises(SettingsError):
        Settings(webhook_timeout_s=longest_s + 0.1)
    assert webhook_sink.CONNECTION_WAIT_S + longest_s + webhook_sink.EXCERPT_WAIT_S < DELIVERY_TIMEOUT_S


# -- https


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    folder = tmp_path_factory.mktemp("certificate")
    made, key = folder / "certificate.pem", folder / "key.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=test -days 2"
    )
    subprocess.run(
        [*command.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-out", made, "-keyout", key],
        check=True,
        capture_output=True,
    )
    return made, key


@pytest.fixture
def tls_receiver(certificate: tuple[Path, Path]) -> Iterator[Receiver]:
    context = SSLContext(PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with receiving(tls=context) as receiver:
        yield receiver


async def test_a_trusted_certificate_is_accepted(
    tls_receiver: Receiver, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    await deliver(sink_to(tls_receiver.url))
    assert tls_receiver.requests[0].verifies()
    other_name = tls_receiver.url.replace("127.0.0.1", "localhost")
    assert "certificate is not trusted: Hostname mismatch" in await failure(sink_to(other_name))


async def test_an_untrusted_certificate_is_refused(tls_receiver: Receiver) -> None:
    message = await failure(sink_to(tls_receiver.url))
    assert message == (
        f"{tls_receiver.url} cannot be reached: its certificate is not trusted: self-signed certificate"
    )
    assert tls_receiver.requests == []


async def test_https_to_a_plain_http_port_is_reported(receiver: Receiver) -> None:
    url = receiver.url.replace("http:", "https:")
    assert (await failure(sink_to(url))).startswith(f"{url} cannot be reached: ")


# -- selection by namespace and task queue


@pytest.mark.parametrize(
    ("queues", "sent"),
    [
        (["*/*"], {"orders/resize", "orders/a/b", "billing/resize", "billing/"}),
        (["orders/*"], {"orders/resize", "orders/a/b"}),
        (["*/resize"], {"orders/resize", "billing/resize"}),
        (["orders/resize"], {"orders/resize"}),
        (["orders/a/b", "billing/resize"], {"orders/a/b", "billing/resize"}),
        (["order/resize", "orders/res", "orders/a"], set()),
    ],
)
def test_the_settings_select_the_task_queues(queues: list[str], sent: set[str]) -> None:
    chosen = sink_selector("http://127.0.0.1:1", SECRET, 10, queues, ManualClock())
    queues_of_test = [("orders", "resize"), ("orders", "a/b"), ("billing", "resize"), ("billing", "")]
    sinks = {f"{namespace}/{queue}": chosen(namespace, queue) for namespace, queue in queues_of_test}
    assert {routed_queue for routed_queue, sink in sinks.items() if sink is not None} == sent
    assert len(set(sinks.values()) - {None}) <= 1, "one sink and so one connection limit"


def test_without_a_url_nothing_is_sent() -> None:
    assert sink_selector("", "", 10, ["*/*"], ManualClock())("orders", "resize") is None


# -- with a complete server


@asynccontextmanager
async def harness_sending_to(url: str, folder: Path, **settings: Any) -> AsyncIterator[ServerHarness]:
    harness = ServerHarness(f"sqlite:///{folder}/liveness.db")
    sink = sink_selector(url, SECRET, 1.0, ["*/*"], harness.clock)(NAMESPACE, "queue")
    await harness.start(sink=sink, takeover_grace_ms=0, **settings)
    try:
        yield harness
    finally:
        await harness.stop()


async def lose(harness: ServerHarness, name: str) -> None:
    await harness.beat("lost", lease_ms=5_000, bound_activities=[bound(name, token=b"token")])
    await harness.advance(6_000)


async def described(harness: ServerHarness, name: str) -> activity_pb2.Activity:
    ref = activity_pb2.ActivityId(workflow_id=f"workflow-{name}", run_id="run", activity_id=name)
    answer = await harness.activities.DescribeActivity(
        activity_pb2.DescribeActivityRequest(namespace=NAMESPACE, id=ref)
    )
    found: activity_pb2.Activity = answer.activity
    return found


async def polled(harness: ServerHarness) -> list[activity_pb2.ActivityTask]:
    """Poll for a second and return the activities."""
    await harness.beat("waiting", lease_ms=600_000)
    request = activity_pb2.PollActivityRequest(
        namespace=NAMESPACE, worker_instance_key="waiting", task_queue="queue", wait=duration(1_000)
    )

    async def poll() -> list[activity_pb2.ActivityTask]:
        return list((await harness.activities.PollActivity(request)).activities)

    polling = asyncio.create_task(poll())
    while not polling.done():
        await harness.advance(250)
    return await polling


async def test_a_lost_activity_is_sent_once_and_handed_to_no_poll(receiver: Receiver, tmp_path: Path) -> None:
    async with harness_sending_to(receiver.url, tmp_path) as harness:
        await lose(harness, "a")
        (request,) = receiver.requests
        assert request.verifies(now=harness.clock.wall_ms() / 1_000)
        sent = json.loads(request.body)
        assert (sent["activity_id"], sent["attempt"], b64decode(sent["token"])) == ("a", 2, b"token")
        assert sent["lost_from"] == {
            "worker_instance_key": "lost", "lease_epoch": 1, "attempt": 1, "died": True
        }  # fmt: skip
        assert await polled(harness) == []
        await harness.restart()
        await harness.advance(60_000)
        found = await described(harness, "a")
        assert (found.state, found.attempt) == (activity_pb2.ACTIVITY_STATE_HANDED_ON, 2)
        assert [task.state for task in await harness.tasks(admin_pb2.TASK_STATE_DONE)] == [
            admin_pb2.TASK_STATE_DONE
        ]
    assert len(receiver.requests) == 1


async def test_deliveries_to_a_down_receiver_are_retried_and_then_dead_lettered(
    tmp_path: Path,
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with harness_sending_to(url, tmp_path, task_attempts_max=3) as harness:
        await lose(harness, "a")
        (task,) = await harness.tasks()
        assert (task.state, task.attempts) == (admin_pb2.TASK_STATE_RETRYING, 1)
        assert task.last_error == f"WebhookFailed: {url} cannot be reached: Connection refused"
        await harness.advance(1_000)
        await harness.advance(2_000)
        (task,) = await harness.tasks()
        assert (task.state, task.attempts) == (admin_pb2.TASK_STATE_DEAD_LETTERED, 3)
        assert (await described(harness, "a")).state == activity_pb2.ACTIVITY_STATE_RELEASED
        assert await polled(harness) == []
        with receiving(port) as receiver:
            await harness.advance(600_000)
            assert receiver.requests == [], "an operator must retry it first"
            await harness.admin.RetryTask(admin_pb2.RetryTaskRequest(task_id=task.task_id))
            await harness.advance(250)
            assert len(receiver.requests) == 1
        assert await harness.tasks() == []
        assert (await described(harness, "a")).state == activity_pb2.ACTIVITY_STATE_HANDED_ON


async def test_a_lost_answer_repeats_the_delivery_with_the_same_id(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.answer = lambda handler: handler.wfile.close()
    async with harness_sending_to(receiver.url, tmp_path) as harness:
        await lose(harness, "a")
        assert (await described(harness, "a")).state == activity_pb2.ACTIVITY_STATE_RELEASED
        receiver.answer = answering(204)
        await harness.advance(1_000)
        assert (await described(harness, "a")).state == activity_pb2.ACTIVITY_STATE_HANDED_ON
    first, second = receiver.requests
    assert first.headers["Liveness-Delivery"] == second.headers["Liveness-Delivery"]
    assert first.body == second.body


# -- the receiver in the documentation


async def test_the_documented_receiver_verifies_and_accepts_each_delivery_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = RECEIVER_IN_THE_DOCS.read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    monkeypatch.setenv("WEBHOOK_SECRET", SECRET)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "receiver"}
    exec(compile(program, "receiver.py", "exec"), names)

    monkeypatch.setattr(names["Receiver"], "log_message", lambda *args: None)
    with http_server(names["Receiver"]) as port:
        url = f"http://127.0.0.1:{port}"
        sink = WebhookSink(url, SECRET, 10, SystemClock())
        for task in (TASK, TASK, TASK._replace(epoch=8)):
            await deliver(sink, task)
        wrong_secret_sink = WebhookSink(url, "another secret of some length", 10, SystemClock())
        assert (await failure(wrong_secret_sink)).startswith(f"{url} answered 401: ")
    with sqlite3.connect(tmp_path / "inbox.db") as inbox:
        rows = inbox.execute("SELECT delivery, activity FROM inbox ORDER BY rowid").fetchall()
    inbox.close()
    assert [delivery for delivery, _ in rows] == [delivery_id(TASK), delivery_id(TASK._replace(epoch=8))]
    assert b64decode(json.loads(rows[0][1])["input"]) == ACTIVITY.input
