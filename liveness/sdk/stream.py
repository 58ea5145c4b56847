"""The stream on which a process's workers stand: orders come in at once, and its end is noticed at once.

One stream for all workers, on the node to which all calls go: when that changes, the old stream ends soon, by itself or
by being cut off, and the next is opened on the new node. Everything but the reader's loop runs on the ticker's thread.

A stream begins with a ping, and workers ask to stand on it when that was answered. To ask is to put one's lease at the
mercy of the stream, for a request that failed may have been served all the same. A server that has answered on a stream
says so if it closes it; but one that is about to stop may well acknowledge a heartbeat, and be gone when the next stream
is opened. Whoever asked there would count a grace that no server counts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from queue import SimpleQueue
from random import Random
from threading import Thread
from typing import Any, Protocol, TypeAlias

import grpc

from liveness.sdk import refusals
from liveness.sdk.failover import Route, Routes
from liveness.sdk.refusals import SHUTTING_DOWN, Refusal
from liveness.sdk.ticker import Ticker, Timer
from liveness.sdk.values import duration_of_ms, ms_of
from liveness.v1.service_pb2 import AttachRequest, AttachResponse

PINGS_PER_GRACE = 4
PING_MS_MIN = 50
PING_MS_MAX = 5_000
"""Also without a grace: orders come on the stream, so it should be known whether it works."""
LOOK_AGAIN_MS = 25
"""Whoever wakes up so late stood still himself; and when he has been awake for so long, he has read what lay there."""
RECONNECT_MS = (100, 1_000)

log = logging.getLogger("liveness.sdk")

Place: TypeAlias = tuple[str, str]
"""Namespace and worker instance key."""


class Attachable(Protocol):
    """A worker, as far as the stream is concerned."""

    namespace: str

    @property
    def key(self) -> str: ...

    @property
    def session_id(self) -> str: ...

    @property
    def grace_ms(self) -> int | None:
        """What it asks for, and will be granted."""

    def asking(self) -> None:
        """From now on the server may count its grace."""

    def attached(self, grace_ms: int | None, sent_ms: int) -> None:
        """It stands on a stream; the server saw its request, sent at `sent_ms`."""

    def answered(self, sent_ms: int) -> None:
        """The server saw the stream alive after `sent_ms`."""

    def ordered(self, orders: AttachResponse.Orders) -> None: ...

    def detached(self, *, harmless: bool) -> None:
        """Its stream is gone. `harmless`: the server ended it for reasons of its own; then the worker is to attach
        again."""

    def not_attached(self, refusal: Refusal) -> None: ...


class _Call:
    """One stream from opening to end."""

    def __init__(self) -> None:
        self.outbox: SimpleQueue[AttachRequest | None] = SimpleQueue()
        self.route: Route | None = None
        self.call: Any = None
        self.serving = False
        """Somebody has answered on it, and has not said that it closes."""
        self.closing = False
        self.doubted = False
        """It seems to hang, but we stood still ourselves; looked at again soon, once."""
        self.hung = False
        self.heard_ms = 0
        """When something last came in."""
        self.waiting: dict[Place, int] = {}
        """Asked to be attached, and when."""
        self.attached: set[Place] = set()
        self.pings: dict[int, int] = {}

    def requests(self) -> Iterator[AttachRequest]:
        while (request := self.outbox.get()) is not None:
            yield request


class Stream:
    def __init__(self, ticker: Ticker, routes: Routes, random: Random) -> None:
        self._ticker = ticker
        self._routes = routes
        self._random = random
        self._lives: dict[Place, Attachable] = {}
        self._current: _Call | None = None
        self._reconnect: Timer | None = None
        self._reconnect_ms = 0
        self._failures = 0
        """Streams in a row on which nobody came to stand."""
        self._ping_timer: Timer | None = None
        self._ping_number = 0
        self._closed = False

    # -- what workers ask

    def attach(self, life: Attachable) -> None:
        self._lives[life.namespace, life.key] = life
        if self._current is not None:
            if self._current.serving:
                self._ask(self._current, life)
        elif self._reconnect is None:
            self._open()

    def detach(self, life: Attachable) -> None:
        """The goodbye: nothing that happens to the stream concerns this worker any more."""
        place = life.namespace, life.key
        if self._lives.get(place) is not life:
            return
        del self._lives[place]
        current = self._current
        if current is None:
            return
        if place in current.attached or place in current.waiting:
            current.attached.discard(place)
            current.waiting.pop(place, None)
            goodbye = AttachRequest.Detach(namespace=life.namespace, worker_instance_key=life.key)
            current.outbox.put(AttachRequest(detach=goodbye))
        if not self._lives:
            current.outbox.put(None)
            self._current = None

    def close(self) -> None:
        self._closed = True
        if self._current is not None:
            self._current.outbox.put(None)
            self._current.call.cancel()
        for timer in (self._reconnect, self._ping_timer):
            if timer is not None:
                timer.cancel()

    # -- opening and breaking

    def _open(self) -> None:
        self._reconnect = None
        if self._closed or not self._lives:
            return
        self._current = current = _Call()
        current.heard_ms = self._ticker.now_ms()
        current.route, current.call = self._routes.begin(
            lambda route: route.liveness.Attach(current.requests())
        )
        Thread(target=self._read, args=(current,), name="liveness-attach", daemon=True).start()
        self._ping()

    def _ask(self, current: _Call, life: Attachable) -> None:
        place = life.namespace, life.key
        current.waiting[place] = self._ticker.now_ms()
        request = AttachRequest.Attach(
            namespace=life.namespace, worker_instance_key=life.key, session_id=life.session_id
        )
        if life.grace_ms is not None:
            request.disconnect_grace.CopyFrom(duration_of_ms(life.grace_ms))
        life.asking()
        current.outbox.put(AttachRequest(attach=request))

    def _read(self, current: _Call) -> None:
        """The reader's thread."""
        try:
            for response in current.call:
                self._ticker.post(partial(self._handle, current, response))
        except grpc.RpcError:
            pass  # the call itself knows how it ended
        self._ticker.post(lambda: self._broke(current, refusals.of_call(current.call)))

    def _broke(self, current: _Call, refusal: Refusal) -> None:
        current.outbox.put(None)
        if current is not self._current:
            return
        self._current = None
        if current.closing:
            refusal = Refusal(grpc.StatusCode.UNAVAILABLE, SHUTTING_DOWN)
        elif current.hung:
            refusal = Refusal(grpc.StatusCode.DEADLINE_EXCEEDED, message="a ping was not answered")
        harmless = refusal.reason == SHUTTING_DOWN
        log.debug("the stream ended: %s", refusal)
        at_once = False
        if not self._closed:
            assert current.route is not None
            self._failures += 1
            at_once = self._routes.failed(current.route, refusal, self._failures)
        for place in (*current.attached, *current.waiting):
            # A worker that is safe without a stream wants one again when a heartbeat shows that there is a server.
            life = self._lives.pop(place, None) if harmless else self._lives.get(place)
            if life is not None:
                life.detached(harmless=harmless)
        if refusal.code is grpc.StatusCode.UNIMPLEMENTED:
            for life in list(self._lives.values()):
                life.not_attached(refusal)
        if self._closed or self._reconnect is not None or not self._lives:
            return
        wait_ms = 0 if at_once else self._reconnect_ms
        if not at_once:
            self._reconnect_ms = min(max(wait_ms * 2, RECONNECT_MS[0]), RECONNECT_MS[1])
        at_ms = self._ticker.now_ms() + int(wait_ms * self._random.uniform(0.5, 1))
        self._reconnect = self._ticker.at(at_ms, self._open)

    # -- what comes in

    def _handle(self, current: _Call, response: AttachResponse) -> None:
        if current is not self._current:
            return
        current.heard_ms = self._ticker.now_ms()
        current.doubted = False
        match response.WhichOneof("response"):
            case "attached":
                self._attached(current, response.attached)
            case "orders":
                orders = response.orders
                life = self._lives.get((orders.namespace, orders.worker_instance_key))
                if life is not None:
                    life.ordered(orders)
            case "pong":
                self._pong(current, response.pong.number)
            case "closing":
                current.closing, current.serving = True, False

    def _attached(self, current: _Call, answer: AttachResponse.Attached) -> None:
        place = answer.namespace, answer.worker_instance_key
        sent_ms = current.waiting.pop(place, None)
        life = self._lives.get(place)
        if life is None or sent_ms is None:
            return
        if answer.HasField("status"):
            life.detached(harmless=False)
            life.not_attached(refusals.of_status(answer.status))
            return
        self._reconnect_ms = 0
        self._failures = 0
        current.attached.add(place)
        granted = answer.HasField("disconnect_grace")
        life.attached(ms_of(answer.disconnect_grace) if granted else None, sent_ms)
        self._ping()

    # -- pings

    def _ping(self) -> None:
        """Ping now and then; and if a ping stays unanswered for long, the stream is as good as broken."""
        current, now_ms = self._current, self._ticker.now_ms()
        late_ms = 0
        if self._ping_timer is not None:
            late_ms = now_ms - self._ping_timer.at_ms
            self._ping_timer.cancel()
            self._ping_timer = None
        every_ms = self._ping_every_ms()
        if current is None:
            return
        if current.pings:
            # Answers to many who are being attached come before that to the ping, and show that there is somebody.
            silent_ms = now_ms - max(min(current.pings.values()), current.heard_ms)
            if silent_ms > self._patience_ms(every_ms):
                if late_ms > LOOK_AGAIN_MS and not current.doubted:
                    # The answer may be there, and behind it the word that the stream is being closed.
                    current.doubted = True
                    self._ping_timer = self._ticker.at(now_ms + LOOK_AGAIN_MS, self._ping)
                    return
                current.hung = True
                current.call.cancel()
                return
        self._ping_number += 1
        current.pings[self._ping_number] = now_ms
        current.outbox.put(AttachRequest(ping=AttachRequest.Ping(number=self._ping_number)))
        self._ping_timer = self._ticker.at(now_ms + every_ms, self._ping)

    def _patience_ms(self, every_ms: int) -> int:
        """Half a grace. Where another node can be asked, a quarter, to leave time for that: the last ping that was
        answered may have been sent another quarter earlier."""
        return every_ms * PINGS_PER_GRACE // 2 if len(self._routes) == 1 else every_ms - 1

    def _ping_every_ms(self) -> int:
        graces = [life.grace_ms for life in self._lives.values() if life.grace_ms is not None]
        shortest_ms = min(graces, default=PING_MS_MAX * PINGS_PER_GRACE)
        return min(max(shortest_ms // PINGS_PER_GRACE, PING_MS_MIN), PING_MS_MAX)

    def _pong(self, current: _Call, number: int) -> None:
        sent_ms = current.pings.get(number)
        if sent_ms is None:
            return
        current.pings = {other: at_ms for other, at_ms in current.pings.items() if other > number}
        for place in current.attached:
            life = self._lives.get(place)
            if life is not None:
                life.answered(sent_ms)
        if not (current.serving or current.closing):
            current.serving = True
            for life in list(self._lives.values()):
                self._ask(current, life)
