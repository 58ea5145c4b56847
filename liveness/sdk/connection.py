"""One channel per server and process, shared by everything that talks to that server."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from random import Random
from threading import Lock
from typing import Any, ClassVar, Protocol, TypeVar

import grpc

from liveness.clock import SystemClock
from liveness.sdk import refusals
from liveness.sdk.heart import Heart
from liveness.sdk.pulse import BACKOFF_MS
from liveness.sdk.refusals import Refusal, Refused
from liveness.sdk.stream import Stream
from liveness.sdk.ticker import Ticker
from liveness.v1.activity_pb2_grpc import ActivityServiceStub
from liveness.v1.service_pb2_grpc import LivenessServiceStub

CHANNEL_OPTIONS = (
    # A server that restarts is back within a second; nobody should wait for it longer than needed.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    # A proxy for the web is rarely meant for this, and would turn "no server" into a riddle.
    ("grpc.enable_http_proxy", 0),
    # A connection on which nothing comes back is given up. Without this, a channel would wait a quarter of an hour for
    # a machine that vanished. The server's answers to the stream's pings come more often than this, so that gRPC itself
    # has to ask only when something is wrong, and the server never finds it asking too often.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    # Its own connection, so that one program's two SDKs (a test's, say) do not share fate by accident.
    ("grpc.use_local_subchannel_pool", 1),
)
CALL_SECONDS = 5.0

T = TypeVar("T")


class Method(Protocol):
    def future(
        self, request: Any, timeout: float | None = None, *, wait_for_ready: bool | None = None
    ) -> Any: ...


def promise() -> Future[Any]:
    """A future that only its maker settles; whoever waits may give up waiting, but not take it back."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


class Connection:
    """Use `Connection.to(address)`, and `release` it when done."""

    _open: ClassVar[dict[tuple[int, str], Connection]] = {}
    _lock: ClassVar[Lock] = Lock()

    def __init__(self, address: str) -> None:
        self.address = address
        self.clock = SystemClock()
        self.random = Random()
        self.channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        self.liveness = LivenessServiceStub(self.channel)
        self.activities = ActivityServiceStub(self.channel)
        self.ticker = Ticker(self.clock, "liveness-heart", self._broke_down)
        self.heart = Heart(self.ticker, self.liveness, self.random)
        self.stream = Stream(self.ticker, self.liveness, self.random)
        self.on_breakdown: dict[int, Callable[[], None]] = {}
        self._users = 0
        self._unanswered: set[Future[Any]] = set()
        self.ticker.start()

    @classmethod
    def to(cls, address: str) -> Connection:
        with cls._lock:
            place = os.getpid(), address
            connection = cls._open.get(place)
            if connection is None:
                connection = cls._open[place] = cls(address)
            connection._users += 1
            return connection

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                return
            self._open.pop((os.getpid(), self.address), None)
        self.ticker.post(self.stream.close)
        self.ticker.stop()
        self.channel.close()
        self._answer_nobody("the connection was closed")

    def call(
        self,
        method: Method,
        request: object,
        *,
        again: Callable[[Refusal], bool] = lambda _: False,
        timeout_s: float = CALL_SECONDS,
        wait_for_ready: bool = False,
    ) -> Future[Any]:
        """Make a unary call, and make it again after refusals that `again` says yes to. Fails with `Refused`."""
        outcome = promise()
        self._unanswered.add(outcome)
        outcome.add_done_callback(self._unanswered.discard)
        wait_ms = BACKOFF_MS[0]

        def attempt() -> None:
            call = method.future(request, timeout=timeout_s, wait_for_ready=wait_for_ready)
            call.add_done_callback(lambda done: self.ticker.post(lambda: ended(done)))

        def ended(call: Any) -> None:
            nonlocal wait_ms
            if call.code() is grpc.StatusCode.OK:
                outcome.set_result(call.result())
                return
            refusal = refusals.of_call(call)
            if not again(refusal):
                outcome.set_exception(Refused(refusal))
                return
            pause_ms = max(refusal.retry_after_ms, int(wait_ms * self.random.uniform(0.5, 1)))
            wait_ms = min(wait_ms * 2, BACKOFF_MS[1])
            self.ticker.at(self.ticker.now_ms() + pause_ms, attempt)

        attempt()
        return outcome

    def _broke_down(self) -> None:
        for tell in list(self.on_breakdown.values()):
            tell()
        self._answer_nobody("the SDK's own thread has failed")

    def _answer_nobody(self, why: str) -> None:
        """Nobody must go on waiting for what cannot come any more."""
        for outcome in list(self._unanswered):
            outcome.set_exception(Refused(Refusal(grpc.StatusCode.CANCELLED, message=why)))
