"""One per server and process, shared by everything that talks to that server, at whichever of its addresses."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from random import Random
from threading import Lock
from typing import Any, ClassVar, Protocol, TypeAlias

import grpc
from google.protobuf.message import Message

from liveness.clock import SystemClock
from liveness.sdk import refusals, traces
from liveness.sdk.addresses import said
from liveness.sdk.failover import Route, Routes
from liveness.sdk.heart import Heart
from liveness.sdk.pulse import BACKOFF_MS
from liveness.sdk.refusals import Refusal, Refused
from liveness.sdk.stream import Stream
from liveness.sdk.ticker import Ticker

CALL_SECONDS = 5.0
LINGER_MS = 1_000
"""How long a node that was left may still be listened to. One that stops in good order answers what it was asked, hands
out what a poll is to get, and says that the end of its stream means nothing; one that hangs never will."""


class Method(Protocol):
    def future(
        self,
        request: Any,
        timeout: float | None = None,
        metadata: tuple[tuple[str, str], ...] | None = None,
        *,
        wait_for_ready: bool | None = None,
    ) -> Any: ...


Pick: TypeAlias = Callable[[Route], Method]
"""Which method to call, of the node whose turn it is."""


def promise() -> Future[Any]:
    """A future that only its maker settles; whoever waits may give up waiting, but not take it back."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


class Connection:
    """Use `Connection.to(addresses)`, and `release` it when done."""

    _open: ClassVar[dict[tuple[int, tuple[str, ...]], Connection]] = {}
    _lock: ClassVar[Lock] = Lock()

    def __init__(self, addresses: tuple[str, ...]) -> None:
        self.address = said(addresses)
        self._addresses = addresses
        self.clock = SystemClock()
        self.random = Random()
        self.routes = Routes(addresses, self.random, self._left)
        self.ticker = Ticker(self.clock, "liveness-heart", self._broke_down)
        self.heart = Heart(self.ticker, self.routes, self.random)
        self.stream = Stream(self.ticker, self.routes, self.random)
        self.on_breakdown: dict[int, Callable[[], None]] = {}
        self._users = 0
        self._unanswered: set[Future[Any]] = set()
        self.ticker.start()

    @classmethod
    def to(cls, addresses: tuple[str, ...]) -> Connection:
        with cls._lock:
            place = os.getpid(), addresses
            connection = cls._open.get(place)
            if connection is None:
                connection = cls._open[place] = cls(addresses)
            connection._users += 1
            return connection

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                return
            self._open.pop((os.getpid(), self._addresses), None)
        self.ticker.post(self.stream.close)
        self.ticker.stop()
        self.routes.close_all()
        self._answer_nobody("the connection was closed")

    def call(
        self,
        pick: Pick,
        request: Message,
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
        failures = 0
        span = traces.here()

        def attempt() -> None:
            sent = None if span is None else traces.begin(request, span)

            def start(route: Route) -> Any:
                return pick(route).future(
                    request,
                    timeout=timeout_s,
                    metadata=None if sent is None else sent.metadata,
                    wait_for_ready=wait_for_ready,
                )

            route, call = self.routes.begin(start)
            if sent is not None:
                call.add_done_callback(sent.ended)
            call.add_done_callback(lambda done: self.ticker.post(lambda: ended(route, done)))

        def ended(route: Route, call: Any) -> None:
            nonlocal wait_ms, failures
            if call.code() is grpc.StatusCode.OK:
                self.routes.worked(route)
                outcome.set_result(call.result())
                return
            refusal = refusals.of_call(call)
            failures += 1
            at_once = self.routes.failed(route, refusal, failures)
            if not again(refusal):
                outcome.set_exception(Refused(refusal))
                return
            if at_once:
                attempt()
                return
            pause_ms = max(refusal.retry_after_ms, int(wait_ms * self.random.uniform(0.5, 1)))
            wait_ms = min(wait_ms * 2, BACKOFF_MS[1])
            self.ticker.at(self.ticker.now_ms() + pause_ms, attempt)

        attempt()
        return outcome

    def patience_s(self, total_s: float) -> float:
        """How long one node may take to answer, so that others can be asked in the time that there is."""
        return CALL_SECONDS if len(self.routes) == 1 else min(CALL_SECONDS, total_s / len(self.routes))

    def _left(self, route: Route) -> None:
        self.ticker.post(self.heart.moved)
        self.ticker.at(self.ticker.now_ms() + LINGER_MS, lambda: self.routes.close(route))

    def _broke_down(self) -> None:
        for tell in list(self.on_breakdown.values()):
            tell()
        self._answer_nobody("the SDK's own thread has failed")

    def _answer_nobody(self, why: str) -> None:
        """Nobody must go on waiting for what cannot come any more."""
        for outcome in list(self._unanswered):
            outcome.set_exception(Refused(Refusal(grpc.StatusCode.CANCELLED, message=why)))
