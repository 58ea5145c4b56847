"""Which of several addresses is talked to, and when it is another's turn.

All calls, polls and the stream go to one address, the current one. Whoever finds that it is gone, hangs or is about to
end says so (`failed`), and from then on everything goes to the next. Nobody goes back while the current one works.

Each caller counts its own failures in a row. As long as there are addresses that it has not tried, it tries again at
once; when a whole round has failed it backs off as with a single address. So callers cannot drive each other round in
circles: one that fails everywhere slows down, however well the others fare.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from threading import Lock
from typing import TypeVar

import grpc

from liveness.sdk.refusals import Refusal
from liveness.v1.activity_pb2_grpc import ActivityServiceStub
from liveness.v1.service_pb2_grpc import LivenessServiceStub

CHANNEL_OPTIONS = (
    # A server that restarts is back within a second; nobody should wait for it longer than needed.
    ("grpc.initial_reconnect_backoff_ms", 100),
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

CONNECT_MS = 100
"""How long an attempt to connect may take at least. gRPC itself gives the next one more."""
CONNECT_MS_OF_SEVERAL = (200, 5_000)
"""A node that accepts and then says nothing must not use up the time that there is to find another; but where all are
far away, each has to be given the time that it takes. So it is short at first, and doubles with each round."""

log = logging.getLogger("liveness.sdk")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """An address from the time its turn comes until it is left. Its name is resolved anew each time."""

    address: str
    channel: grpc.Channel
    liveness: LivenessServiceStub
    activities: ActivityServiceStub

    @classmethod
    def to(cls, address: str, connect_ms: int) -> Route:
        """Connects when it is first used."""
        options = (*CHANNEL_OPTIONS, ("grpc.min_reconnect_backoff_ms", connect_ms))
        channel = grpc.insecure_channel(address, options=options)
        return cls(address, channel, LivenessServiceStub(channel), ActivityServiceStub(channel))


class Routes:
    """`worked`, `failed` and `close` are for one thread, the ticker's; the rest is for any."""

    def __init__(self, addresses: Sequence[str], random: Random, on_left: Callable[[Route], None]) -> None:
        """`on_left` is told of each route that was left. Calls may still be under way there; `close` ends them."""
        # Each process its own order: a fleet spreads over the nodes, and those of a dead node over the others.
        self._order = random.sample(addresses, len(addresses))
        self._turn = 0
        self._moves = 0
        """Since a call was answered."""
        self._on_left = on_left
        self._lock = Lock()
        self._left: set[Route] = set()
        self.current = self._route()

    def __len__(self) -> int:
        return len(self._order)

    def begin(self, start: Callable[[Route], T]) -> tuple[Route, T]:
        """Begin a call at the current address, which is not left in between. `start` must not block."""
        with self._lock:
            return self.current, start(self.current)

    def worked(self, route: Route) -> None:
        """A call on it was answered."""
        if route is self.current:
            self._moves = 0

    @property
    def connect_ms(self) -> int:
        """How long the current node may take to be connected to."""
        if len(self) == 1:
            return CONNECT_MS
        first_ms, last_ms = CONNECT_MS_OF_SEVERAL
        rounds = min(self._moves // len(self), last_ms.bit_length())
        return min(first_ms << rounds, last_ms)

    def failed(self, route: Route, refusal: Refusal, failures: int) -> bool:
        """A call on `route` ended like this, its caller's so manieth failure in a row. Whether the caller may try again
        at once: elsewhere, where it has not been."""
        if refusal.elsewhere and route is self.current and len(self) > 1:
            self._move(refusal)
        return route is not self.current and failures < len(self)

    def close(self, route: Route) -> None:
        """Calls that are still under way there end as CANCELLED."""
        with self._lock:
            self._left.discard(route)
            route.channel.close()

    def close_all(self) -> None:
        for route in (*self._left, self.current):
            self.close(route)

    def _move(self, refusal: Refusal) -> None:
        self._turn = (self._turn + 1) % len(self)
        self._moves += 1
        with self._lock:
            left, self.current = self.current, self._route()
            self._left.add(left)
        log.info("leaving %s for %s: %s", left.address, self.current.address, refusal)
        self._on_left(left)

    def _route(self) -> Route:
        return Route.to(self._order[self._turn], self.connect_ms)
