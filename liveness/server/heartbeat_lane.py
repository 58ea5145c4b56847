"""Serves single heartbeats that arrived in the same turn of the event loop together: one decision loop, one wait for the commit, one
answer to the edge.

Each call passes the same checks as a call that is served alone, by the same functions (`unary_calls.py`), and gets the same answer.
Whatever is not plain is served alone: a caller that must be verified first, a sampled trace, a request that is large or
malformed or not allowed. Heartbeats whose shard is elsewhere go to their owners together, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol

import grpc
from google.protobuf.message import Message

from liveness.clock import SystemClock, stopwatch
from liveness.domain.errors import LivenessError, MalformedRequest
from liveness.routing.coalescing import BATCH_BYTES_MAX
from liveness.routing.gateway import MethodRouter
from liveness.routing.routing_table import Owner
from liveness.routing.rpc_failures import RpcFailure
from liveness.rpc.call_metadata import keep_metadata
from liveness.rpc.tracing import CallTracer, is_sampled
from liveness.security.authorization import authorize
from liveness.security.principal import Caller, current_caller
from liveness.server.edge_calls import Headers
from liveness.server.edge_listener import EdgeServer
from liveness.server.unary_calls import BYTES_PER_SLICE_MAX, UnaryMethod, counted, serialize
from liveness.store.errors import StoreError
from liveness.telemetry.call_stats import OK, MethodStats
from liveness.v1.service_pb2 import RecordWorkerHeartbeatRequest
from liveness.v1.worker_pb2 import WorkerHeartbeat

Parse = Callable[[bytes], Message | MalformedRequest]
Answer = bytes | LivenessError | StoreError | RpcFailure

BYTES_PER_TURN_MAX = 512 * 1024
"""Of the requests that are parsed in one turn of the event loop: to parse thousands of large ones would take long. The others are
served one by one, in turns of their own."""
CANCELLED = grpc.StatusCode.CANCELLED.name
_ID, _HEADERS, _DEADLINE, _MESSAGE = 1, 3, 4, 5
"""Where a call that has arrived has what (`CallArrived`). It stays a plain tuple: this runs for every heartbeat."""

_monotonic_ms = SystemClock().monotonic_ms


class HeartbeatService(Protocol):
    async def record_single_heartbeats(
        self,
        namespace: str,
        beats: Sequence[WorkerHeartbeat],
        principals: Sequence[str],
        on_decided: Callable[[Sequence[int]], None],
    ) -> list[bytes | LivenessError]: ...

    async def admit_single_heartbeats(
        self, namespace: str, beats: Sequence[WorkerHeartbeat], principals: Sequence[str]
    ) -> list[bytes | LivenessError]: ...


class _Source:
    """What all calls with the same headers have in common. It is kept with the headers, and is the context of their checks."""

    __slots__ = ("can_be_forwarded_together", "goes_alone", "headers")

    def __init__(self, headers: Headers, *, goes_alone: bool, can_be_forwarded_together: bool) -> None:
        self.headers = headers
        self.goes_alone = goes_alone
        self.can_be_forwarded_together = can_be_forwarded_together

    def invocation_metadata(self) -> Any:
        return self.headers.metadata

    def peer(self) -> str:
        return self.headers.peer


class _Group:
    """Calls that are decided together, or forwarded together."""

    __slots__ = ("_ids", "callers", "calls", "cancelled", "requests", "seconds", "split", "timer")

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.requests: list[RecordWorkerHeartbeatRequest] = []
        self.callers: list[Caller | None] = []
        self.cancelled: set[int] = set()
        """The calls whose clients withdrew them, or whose deadlines are over."""
        self.split: frozenset[int] = frozenset()
        """The places of calls that another group serves now."""
        self.seconds = stopwatch()
        self.timer: asyncio.TimerHandle | None = None
        self._ids: frozenset[int] | None = None

    def add(self, call: Any, request: RecordWorkerHeartbeatRequest, caller: Caller | None) -> None:
        self.calls.append(call)
        self.requests.append(request)
        self.callers.append(caller)

    def split_off(self, positions: Sequence[int]) -> _Group:
        """Move calls to a group of their own."""
        part = _Group()
        for position in positions:
            part.add(self.calls[position], self.requests[position], self.callers[position])
        # What was cancelled is told to whichever group is asked first.
        part.cancelled = self.cancelled
        part.seconds = self.seconds
        self.split = frozenset(positions)
        return part

    @property
    def open_ids(self) -> list[int]:
        """Of the calls that are still its own."""
        return [call[_ID] for position, call in enumerate(self.calls) if position not in self.split]

    def cancel(self, call_id: int) -> bool:
        """Returns whether the call is one of the group's."""
        if self._ids is None:
            self._ids = frozenset(call[_ID] for call in self.calls)
        if call_id not in self._ids:
            return False
        self.cancelled.add(call_id)
        return True

    @property
    def principals(self) -> list[str]:
        return ["" if caller is None else caller.principal.name for caller in self.callers]

    def remaining_s(self) -> float | None:
        """The time until the last deadline; None if one has none."""
        deadlines_ms = [call[_DEADLINE] for call in self.calls]
        return max(0, max(deadlines_ms) - _monotonic_ms()) / 1_000 if all(deadlines_ms) else None

    def earliest_deadline_ms(self) -> int:
        """Of those that are not over; 0 if there is none."""
        cancelled = self.cancelled
        return min(
            (call[_DEADLINE] for call in self.calls if call[_DEADLINE] and call[_ID] not in cancelled),
            default=0,
        )


class HeartbeatLane:
    def __init__(
        self,
        server: EdgeServer,
        method: UnaryMethod,
        service: HeartbeatService | None,
        parse: Parse,
        stats: MethodStats,
        tracer: CallTracer | None,
    ) -> None:
        """`service`: None in a frontend, which forwards everything."""
        self._server = server
        self._method = method
        self._service = service
        self._parse = parse
        self._stats = stats
        self._is_traced = tracer is not None
        self._calls_in_flight = method.gate.calls
        self._router = method.router if isinstance(method.router, MethodRouter) else None
        self._groups: set[_Group] = set()
        self._undecided: dict[_Group, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    # -- what arrives

    def take(self, calls: list[Any]) -> list[Any]:
        """Returns those that are to be served one by one."""
        method = self._method
        if method.gate.is_closed:
            return calls
        guard, oversight, router, admit, parse = (
            method.guard, method.oversight, self._router, method.admit, self._parse,
        )  # fmt: skip
        alone: list[Any] = []
        local: dict[str, _Group] = {}
        forwarded: dict[tuple[str, str, str], tuple[Owner, _Group]] = {}
        caller: Caller | None = None
        parsed_bytes = 0
        for call in calls:
            headers = call[_HEADERS]
            source: _Source = headers.caller or self._look_at(headers)
            message = call[_MESSAGE]
            size = len(message)
            if source.goes_alone or size > BYTES_PER_SLICE_MAX or parsed_bytes + size > BYTES_PER_TURN_MAX:
                alone.append(call)
                continue
            parsed_bytes += size
            request = parse(message)
            # No presence is asked for without need: this runs for every heartbeat.
            if not isinstance(request, RecordWorkerHeartbeatRequest) or not request.HasField("heartbeat"):
                alone.append(call)
                continue
            namespace = request.namespace
            owner: Owner | None = None
            try:
                if guard is not None:
                    caller = guard.known(headers.metadata)
                    if caller is None:
                        alone.append(call)
                        continue
                    authorize(caller.principal, guard.rule, request)
                if admit is not None:
                    admit(namespace)
            except LivenessError:
                alone.append(call)
                continue
            if router is not None and not router.is_local(request, source):  # type: ignore[arg-type]
                if source.can_be_forwarded_together and len(message) <= BATCH_BYTES_MAX:
                    owner = router.batch_owner(request)
                if owner is None:
                    alone.append(call)
                    continue
            if oversight is not None:
                # Last of all: what is served alone is counted there.
                try:
                    if caller is None:
                        oversight.admit_anonymous(source)
                    else:
                        oversight.admit(caller, source)
                except LivenessError as error:
                    self._calls_in_flight.count += 1
                    self._go_on_alone(call, request, caller, error)
                    continue
            if owner is None:
                group = local.get(namespace)
                if group is None:
                    group = local[namespace] = _Group()
            else:
                key = (owner.node_id, owner.address, namespace)
                if key not in forwarded:
                    forwarded[key] = owner, _Group()
                group = forwarded[key][1]
            group.add(call, request, caller)
        for namespace, group in local.items():
            self._undecided[group] = self._loop.create_future()
            self._start(group, self._record(namespace, group))
        for (_, _, namespace), (to, group) in forwarded.items():
            self._start(group, self._forward(to, namespace, group))
        return alone

    def _look_at(self, headers: Headers) -> _Source:
        source = _Source(
            headers,
            goes_alone=self._is_traced and is_sampled(headers.metadata),
            can_be_forwarded_together=self._router is not None and self._router.can_batch(headers.metadata),
        )
        headers.caller = source
        return source

    def stop(self) -> None:
        """Wait for no commit and no other node any more."""
        for task in self._tasks:
            task.cancel()

    def cancel(self, call_id: int) -> None:
        for group in self._groups:
            if group.cancel(call_id):
                return

    def undecided(self) -> asyncio.Future[None] | None:
        if not self._undecided:
            return None
        return asyncio.gather(*self._undecided.values())  # type: ignore[return-value]

    # -- groups

    def _start(self, group: _Group, serving: Any) -> None:
        self._groups.add(group)
        self._calls_in_flight.count += len(group.calls)
        task = self._loop.create_task(serving)
        self._tasks.add(task)
        task.add_done_callback(partial(self._on_done, group))
        self._set_timer(group)

    def _set_timer(self, group: _Group) -> None:
        """One for the whole group: nearly all calls are answered long before."""
        if deadline_ms := group.earliest_deadline_ms():
            group.timer = self._loop.call_at(deadline_ms / 1_000, self._expire, group)

    def _expire(self, group: _Group) -> None:
        now_ms = _monotonic_ms()
        for call in group.calls:
            if call[_DEADLINE] and call[_DEADLINE] <= now_ms and call[_ID] not in group.cancelled:
                group.cancelled.add(call[_ID])
                self._server.expire(call[_ID])
        self._set_timer(group)

    def _mark_decided(self, group: _Group) -> None:
        decided = self._undecided.pop(group, None)
        if decided is not None:
            decided.set_result(None)

    def _end(self, group: _Group) -> None:
        self._groups.discard(group)
        if group.timer is not None:
            group.timer.cancel()

    def _on_done(self, group: _Group, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._mark_decided(group)
        if group in self._groups:
            # Only a fault of this program leads here.
            self._end(group)
            call_ids = group.open_ids
            self._calls_in_flight.count -= len(call_ids)
            error = None if task.cancelled() else task.exception()
            self._server.fail_calls(call_ids, error)
            code = grpc.StatusCode.UNKNOWN.name if error is not None else CANCELLED
            self._stats.record_many(code, group.seconds(), len(call_ids))

    async def _record(self, namespace: str, group: _Group) -> None:
        assert self._service is not None, "only a node has shards of its own"
        beats, principals = [request.heartbeat for request in group.requests], group.principals
        answers: Sequence[Answer]
        try:
            answers = await self._service.record_single_heartbeats(
                namespace, beats, principals, partial(self._on_decided, namespace, group)
            )
        except (LivenessError, StoreError) as error:
            answers = [error] * len(beats)
        self._answer(group, answers)

    def _on_decided(self, namespace: str, group: _Group, unadmitted: Sequence[int]) -> None:
        self._mark_decided(group)
        if unadmitted:
            # They may have to wait for other nodes, and nobody else waits with them.
            rest = group.split_off(unadmitted)
            self._calls_in_flight.count -= len(unadmitted)  # they are counted again
            self._start(rest, self._admit(namespace, rest))

    async def _admit(self, namespace: str, group: _Group) -> None:
        assert self._service is not None, "only a node admits workers"
        answers: Sequence[Answer]
        try:
            answers = await self._service.admit_single_heartbeats(
                namespace, [request.heartbeat for request in group.requests], group.principals
            )
        except (LivenessError, StoreError) as error:
            answers = [error] * len(group.calls)
        self._answer(group, answers)

    async def _forward(self, owner: Owner, namespace: str, group: _Group) -> None:
        assert self._router is not None, "without a router, every shard is here"
        outcomes = await self._router.send_together(
            owner,
            namespace,
            group.requests,
            [b"" if caller is None else caller.principal.encoded() for caller in group.callers],
            group.remaining_s(),
        )
        self._answer(
            group,
            [outcome if isinstance(outcome, RpcFailure) else outcome.body for outcome in outcomes],
            owner,
        )

    # -- answers

    def _answer(self, group: _Group, answers: Sequence[Answer], owner: Owner | None = None) -> None:
        """Answer all calls of the group that are not over. `owner`: the node that was asked."""
        self._end(group)
        cancelled, split_off = group.cancelled, group.split
        sent: list[tuple[int, bytes]] = []
        withdrawn = 0
        for position, answer in enumerate(answers):
            call = group.calls[position]
            if split_off and position in split_off:
                continue
            if cancelled and call[_ID] in cancelled:
                withdrawn += 1
            elif isinstance(answer, bytes):
                sent.append((call[_ID], answer))
            else:
                self._go_on_alone(call, group.requests[position], group.callers[position], answer, owner)
        seconds = group.seconds()
        if sent:
            self._server.answer_soon(sent)
            self._stats.record_many(OK, seconds, len(sent))
        if withdrawn:
            self._stats.record_many(CANCELLED, seconds, withdrawn)
        self._calls_in_flight.count -= len(sent) + withdrawn

    def _go_on_alone(
        self,
        call: Any,
        request: RecordWorkerHeartbeatRequest,
        caller: Caller | None,
        error: LivenessError | StoreError | RpcFailure,
        owner: Owner | None = None,
    ) -> None:
        """Serve a call to its end that failed here, or elsewhere: it is retried, or refused."""
        method = self._method
        self._calls_in_flight.count -= 1  # it is counted again
        go_on: Callable[..., Awaitable[Any]]
        if isinstance(error, RpcFailure):
            assert owner is not None, "it was tried there"
            go_on = partial(method.go_on_elsewhere, owner, error)
        else:
            go_on = partial(method.go_on_after, error)
        serve = counted(go_on, self._stats, method.gate)
        context = self._server.new_call(call)

        async def serve_alone() -> None:
            keep_metadata(context.headers.metadata)
            current_caller.set(caller)
            self._server.answer(context, serialize(await serve(request, context)))

        self._server.run(context, serve_alone())


def make_lane(
    server: EdgeServer,
    method: UnaryMethod,
    service: HeartbeatService | None,
    parse: Parse,
    stats: MethodStats,
    tracer: CallTracer | None,
) -> HeartbeatLane:
    return HeartbeatLane(server, method, service, parse, stats, tracer)
