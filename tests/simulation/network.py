"""A network in place of gRPC's, with the same servers, channels and calls.

Messages travel in virtual time and may be late, lost, delivered twice or cut off, each direction separately. Messages
are bytes and pass through the serializers that gRPC would use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Any, NamedTuple

import grpc

from tests.simulation.loop import Process, SimulatedLoop, current_process
from tests.simulation.rpc_calls import Served, UnaryCall
from tests.simulation.rpc_streams import ORDERED_S, StreamCall


@dataclass
class NetworkConditions:
    """The present condition of the network."""

    delay_s: tuple[float, float] = (0.000_2, 0.002)
    loss: float = 0.0
    """Share of messages that are lost, each with its connection."""
    twice: float = 0.0
    """Share of calls that a client, or a proxy on the way, sends twice."""
    straggling: float = 0.0
    """Share of messages that take a hundred times longer, so that others overtake them."""
    cut: set[tuple[str, str]] = field(default_factory=set)
    """Pairs (from, to) between which no message passes; neither side is told."""


class Waiting(NamedTuple):
    """A call that has arrived at a listener and waits for its process to get to it."""

    arrived: float
    call: UnaryCall | StreamCall
    copy: bool

    @property
    def is_wanted(self) -> bool:
        """Whether the client has not given up, or the call is a copy that nobody withdraws."""
        return self.copy or not self.call.done()


class Probe(Enum):
    """What becomes of an attempt to connect."""

    REFUSED = 1
    ACCEPTED = 2
    NO_ANSWER = 3


class Delivered(NamedTuple):
    """An answered call, as the server sees it."""

    process: Process
    path: str
    request: bytes
    code: grpc.StatusCode
    answer: bytes
    trailing: tuple[tuple[str, Any], ...]


class Network:
    def __init__(self, loop: SimulatedLoop, random: Random) -> None:
        self.loop = loop
        self.conditions = NetworkConditions()
        self.served_arrival = 0.0
        """When the call that a server begins to serve now arrived there."""
        self.messages = 0
        self.lost = 0
        self.doubled = 0
        self.straggled = 0
        self.on_answer: Callable[[Delivered], None] = lambda _: None
        self.on_twice: Callable[[str], None] = lambda _: None
        self.on_failure: Callable[[str, BaseException], None] = lambda _, __: None
        self.trace: Callable[..., None] = lambda *_: None
        self.may_double: Callable[[str, str], bool] = lambda _, __: False
        self._random = random
        self._places: dict[str, Listener] = {}

    # -- the interface for production code

    def listener(self, options: object = ()) -> Listener:
        process = current_process()
        assert process is not None
        return Listener(self, process)

    def connect(self, address: str, options: object = ()) -> Channel:
        process = current_process()
        assert process is not None
        return Channel(self, process, address)

    # -- for the simulation

    def open(self, address: str, listener: Listener) -> None:
        before = self._places.get(address)
        assert before is None or not before.open, f"{address} is taken"
        self._places[address] = listener

    def at(self, address: str) -> Listener | None:
        """Return the listener at this address."""
        listener = self._places.get(address)
        return listener if listener is not None and listener.open else None

    def host_of(self, address: str) -> str:
        return address.rpartition(":")[0]

    def passes(self, source: str, target: str) -> bool:
        return (source, target) not in self.conditions.cut

    def travel_s(self) -> float | None:
        """Return how long a message travels; None if it is lost."""
        conditions, random = self.conditions, self._random
        self.messages += 1
        if conditions.loss and random.random() < conditions.loss:
            self.lost += 1
            return None
        low, high = conditions.delay_s
        delay_s = low + (high - low) * random.random()
        if conditions.straggling and random.random() < conditions.straggling:
            self.straggled += 1
            delay_s *= 100
        return delay_s

    def unnoticed_s(self) -> float:
        """Return how long a server that is cut off takes its client's ended stream for open."""
        return self._random.choice((0.3, 1.0, 3.0, 13.0))

    async def probe(self, source: str, address: str) -> Probe:
        """Try to connect, from the current process."""
        target = self.host_of(address)
        if not await self._travels(source, target):
            return Probe.NO_ANSWER
        found = Probe.REFUSED if self.at(address) is None else Probe.ACCEPTED
        return found if await self._travels(target, source) else Probe.NO_ANSWER

    async def _travels(self, source: str, target: str) -> bool:
        """Wait while a message travels; return whether it arrives."""
        travel_s = self.travel_s() if self.passes(source, target) else None
        if travel_s is not None:
            await asyncio.sleep(travel_s)
        return travel_s is not None

    def doubles(self, source: str, path: str) -> float | None:
        """Return the delay after which a second copy of a call follows; None if no copy follows."""
        if not self.conditions.twice or not self.may_double(source, path):
            return None
        if self._random.random() >= self.conditions.twice:
            return None
        self.doubled += 1
        self.on_twice(path)
        return self._random.choice((0.000_1, 0.01, 1.0)) * self._random.random()


class Listener:
    """Replaces `grpc.aio.Server`."""

    def __init__(self, network: Network, process: Process) -> None:
        self.network = network
        self.process = process
        self.open = False
        self.address = ""
        self.serving: dict[int, Served] = {}
        self.service_s = 0.0
        """How long the process takes to get to each message, when it lacks processor time."""
        self.waiting: dict[int, Waiting] = {}
        self._free_at = 0.0
        self._handlers: list[Any] = []
        process.on_death.append(self._died)

    def add_insecure_port(self, address: str) -> int:
        self.address = address
        return int(address.rpartition(":")[2])

    def add_generic_rpc_handlers(self, handlers: tuple[Any, ...]) -> None:
        self._handlers += handlers

    def add_registered_method_handlers(self, *_: object) -> None:
        pass

    async def start(self) -> None:
        self.open = True
        self.network.open(self.address, self)

    def enqueue(self, waiting_id: int, call: Any, copy: bool) -> None:
        self.waiting[waiting_id] = Waiting(self.network.loop.time(), call, copy)

    def when_free(self, callback: Callable[..., None], *args: Any) -> None:
        """Run the callback when the process gets to it: after everything that arrived before, and at once if nothing
        waits."""
        now = self.network.loop.time()
        if not self.service_s and self._free_at <= now:
            callback(*args)
            return
        self._free_at = max(self._free_at, now) + max(self.service_s, ORDERED_S)
        self.process.at(self._free_at, callback, *args)

    def handler(self, path: str, metadata: tuple[tuple[str, Any], ...]) -> Any:
        details = _Details(path, metadata)
        for handler in self._handlers:
            if (found := handler.service(details)) is not None:
                return found
        return None

    async def stop(self, grace: float | None) -> None:
        self.open = False
        if grace:
            done = self.network.loop.create_future()
            timer = self.network.loop.call_later(grace, _set, done)
            for served in list(self.serving.values()):
                served.on_done.append(lambda: None if self.serving else _set(done))
            if self.serving:
                await done
            timer.cancel()
        for served in list(self.serving.values()):
            served.end()

    def _died(self) -> None:
        self.open = False
        for served in list(self.serving.values()):
            served.connection_reset()


class _Details(NamedTuple):
    method: str
    invocation_metadata: tuple[tuple[str, Any], ...]


class Channel:
    """Replaces `grpc.aio.Channel`, to one address."""

    def __init__(self, network: Network, process: Process, address: str) -> None:
        self.network = network
        self.process = process
        self.address = address
        self.calls: dict[int, Any] = {}
        self.closed = False

    def unary_unary(
        self, path: str, request_serializer: Any = None, response_deserializer: Any = None, **_: object
    ) -> Callable[..., UnaryCall]:
        def call(
            request: Any, *, timeout: float | None = None, metadata: Any = None, **_: object
        ) -> UnaryCall:
            body = request if request_serializer is None else request_serializer(request)
            return UnaryCall(self, path, body, timeout, tuple(metadata or ()), response_deserializer)

        return call

    def unary_stream(
        self, path: str, request_serializer: Any = None, response_deserializer: Any = None, **_: object
    ) -> Callable[..., StreamCall]:
        def call(
            request: Any, *, timeout: float | None = None, metadata: Any = None, **_: object
        ) -> StreamCall:
            body = request if request_serializer is None else request_serializer(request)
            return StreamCall(
                self, path, [body], None, timeout, tuple(metadata or ()), None, response_deserializer
            )

        return call

    def stream_stream(
        self, path: str, request_serializer: Any = None, response_deserializer: Any = None, **_: object
    ) -> Callable[..., StreamCall]:
        def call(
            requests: Any = None, *, timeout: float | None = None, metadata: Any = None, **_: object
        ) -> StreamCall:
            return StreamCall(
                self,
                path,
                None,
                requests,
                timeout,
                tuple(metadata or ()),
                request_serializer,
                response_deserializer,
            )

        return call

    async def close(self, grace: float | None = None) -> None:
        self.closed = True
        for call in list(self.calls.values()):
            call.cancel()


def _set(done: Any) -> None:
    if not done.done():
        done.set_result(None)
