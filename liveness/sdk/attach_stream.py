"""The Attach stream of a process: it delivers orders to workers at once, and both sides notice at once when it ends.

All workers of a process share one stream. It runs on the node that receives all calls; after a failover the old stream
ends soon, by itself or because its channel is closed, and the next one is opened on the new node. Everything except the
reader's loop runs on the scheduler's thread.

A stream begins with a ping, and workers send their attach requests only after the pong. The reason: an attach request
starts the disconnect grace, because the server may have served a request whose call failed. A server that has answered
on a stream announces when it closes that stream. But a server that is about to stop may still acknowledge a heartbeat
and be gone when the next stream is opened; a worker that sent its attach request there would count down a grace period
that no server counts.

Only a server process that saw the stream break counts the disconnect grace, in its memory. So the stream asks the server
whether it is connected directly to the only process that could do so. If such a stream breaks, and nobody listens at that
process's addresses any more, the process has ended, and the break counts for nothing. A worker that is merely cut off gets
no such answer and gives its work up when the grace ends.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from itertools import count
from queue import SimpleQueue
from random import Random
from threading import Thread
from typing import Any, Protocol, TypeAlias

import grpc

from liveness.network_addresses import network_name
from liveness.sdk import rpc_failures, server_process
from liveness.sdk.failover import ServerEndpoint, ServerEndpoints
from liveness.sdk.rpc_failures import SHUTTING_DOWN, RpcFailure
from liveness.sdk.scheduler import SchedulerThread, Timer
from liveness.sdk.values import duration_to_ms, ms_to_duration
from liveness.v1.service_pb2 import AttachRequest, AttachResponse

PINGS_PER_GRACE = 4
PING_MS_MIN = 50
PING_MS_MAX = 5_000
"""Streams without a grace are pinged too: orders arrive on the stream, so a broken one must be noticed."""
RECHECK_MS = 25
"""A timer that runs later than this shows that this process itself stood still. After running for this long again, it has
read the messages that arrived meanwhile."""
RECONNECT_BACKOFF_MS = (100, 1_000)

REFUSED_CODES = frozenset(
    {
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
    }
)
"""The server refuses the stream itself, not a worker on it."""

log = logging.getLogger("liveness.sdk")

WorkerId: TypeAlias = tuple[str, str]
"""Namespace and worker instance key."""


class Attachable(Protocol):
    """The part of a worker session that the stream uses."""

    namespace: str

    @property
    def key(self) -> str: ...

    @property
    def session_id(self) -> str: ...

    @property
    def grace_ms(self) -> int | None:
        """The disconnect grace that the worker requests, and that the server will grant."""

    def on_attach_requested(self) -> None:
        """The attach request is being sent; from now on the server may count the grace."""

    def on_attached(self, grace_ms: int | None, sent_ms: int) -> None:
        """The server attached the worker, by a request that was sent at `sent_ms`."""

    def ping_answered(self, sent_ms: int) -> None:
        """The server answered a ping that was sent at `sent_ms`."""

    def on_orders(self, orders: AttachResponse.Orders) -> None: ...

    def on_detached(self, *, closed_by_server: bool) -> None:
        """The stream has ended. `closed_by_server`: the server closed it on purpose, and the worker should attach again."""

    def on_attach_failed(self, rpc_failure: RpcFailure) -> None: ...

    def on_server_ended(self) -> None:
        """The only process that could count the grace of the broken stream has ended."""


class _StreamCall:
    """One stream from opening to end."""

    def __init__(self) -> None:
        self.outbox: SimpleQueue[AttachRequest | None] = SimpleQueue()
        self.endpoint: ServerEndpoint | None = None
        self.call: Any = None
        self.is_serving = False
        """The server has answered on this stream and has not announced that it closes it."""
        self.is_closing = False
        self.recheck_pending = False
        """The stream seems to hang, but this process stood still itself; the stream is checked once more before it is cancelled."""
        self.timed_out = False
        self.last_received_ms = 0
        """When the last message arrived."""
        self.attaching: dict[WorkerId, int] = {}
        """Attach requests without a reply, with the time of sending."""
        self.attached: set[WorkerId] = set()
        self.pings: dict[int, int] = {}
        self.server_addresses: tuple[str, ...] = ()
        """The addresses about which the server was asked whether they are its own."""
        self.is_direct = False
        """The server has confirmed that they are, and that only this process counts the grace."""

    def requests(self) -> Iterator[AttachRequest]:
        while (request := self.outbox.get()) is not None:
            yield request


class AttachStream:
    def __init__(self, scheduler: SchedulerThread, endpoints: ServerEndpoints, random: Random) -> None:
        self._scheduler = scheduler
        self._endpoints = endpoints
        self._random = random
        self._sessions: dict[WorkerId, Attachable] = {}
        self._current: _StreamCall | None = None
        self._reconnect_timer: Timer | None = None
        self._reconnect_delay_ms = 0
        self._failures = 0
        """Consecutive streams on which no worker was attached."""
        self._ping_timer: Timer | None = None
        self._ping_number = 0
        self._attach_numbers = count(1)
        """A server that sees an older stream's request after a newer one's recognises it by its lower number."""
        self._unattended: dict[WorkerId, _StreamCall] = {}
        """Workers whose direct stream broke and that have not requested to be attached since."""
        self._closed = False

    # -- called by worker sessions

    def attach(self, session: Attachable) -> None:
        self._sessions[session.namespace, session.key] = session
        if self._current is not None:
            if self._current.is_serving:
                self._request_attach(self._current, session)
        elif self._reconnect_timer is None:
            self._open()

    def detach(self, session: Attachable) -> None:
        """Say goodbye: later events of the stream no longer concern this worker."""
        worker_id = session.namespace, session.key
        if self._sessions.get(worker_id) is not session:
            return
        del self._sessions[worker_id]
        self._unattended.pop(worker_id, None)
        current = self._current
        if current is None:
            return
        if worker_id in current.attached or worker_id in current.attaching:
            current.attached.discard(worker_id)
            current.attaching.pop(worker_id, None)
            detach_request = AttachRequest.Detach(
                namespace=session.namespace, worker_instance_key=session.key
            )
            current.outbox.put(AttachRequest(detach=detach_request))
        if not self._sessions:
            current.outbox.put(None)
            self._current = None

    def close(self) -> None:
        self._closed = True
        if self._current is not None:
            self._current.outbox.put(None)
            self._current.call.cancel()
        for timer in (self._reconnect_timer, self._ping_timer):
            if timer is not None:
                timer.cancel()

    # -- opening and reconnecting

    def _open(self) -> None:
        self._reconnect_timer = None
        if self._closed or not self._sessions:
            return
        self._current = current = _StreamCall()
        current.last_received_ms = self._scheduler.now_ms()
        current.endpoint, current.call = self._endpoints.start_call(
            lambda endpoint: endpoint.liveness.Attach(current.requests())
        )
        Thread(target=self._read, args=(current,), name="liveness-attach", daemon=True).start()
        self._ping()

    def _request_attach(self, current: _StreamCall, session: Attachable) -> None:
        worker_id = session.namespace, session.key
        current.attaching[worker_id] = self._scheduler.now_ms()
        request = AttachRequest.Attach(
            namespace=session.namespace,
            worker_instance_key=session.key,
            session_id=session.session_id,
            attach_number=next(self._attach_numbers),
        )
        if session.grace_ms is not None:
            request.disconnect_grace.CopyFrom(ms_to_duration(session.grace_ms))
        self._unattended.pop(worker_id, None)
        session.on_attach_requested()
        current.outbox.put(AttachRequest(attach=request))

    def _read(self, current: _StreamCall) -> None:
        """Run the reader's thread."""
        try:
            for response in current.call:
                self._scheduler.call_soon(partial(self._handle, current, response))
        except grpc.RpcError:
            pass  # the status is read from the call below
        self._scheduler.call_soon(
            lambda: self._on_stream_ended(current, rpc_failures.failure_of_call(current.call))
        )

    def _on_stream_ended(self, current: _StreamCall, rpc_failure: RpcFailure) -> None:
        current.outbox.put(None)
        if current is not self._current:
            return
        self._current = None
        if current.is_closing:
            rpc_failure = RpcFailure(grpc.StatusCode.UNAVAILABLE, SHUTTING_DOWN)
        elif current.timed_out:
            rpc_failure = RpcFailure(grpc.StatusCode.DEADLINE_EXCEEDED, message="a ping was not answered")
        closed_by_server = rpc_failure.reason == SHUTTING_DOWN
        log.debug("the stream ended: %s", rpc_failure)
        retry_now = False
        if not self._closed:
            assert current.endpoint is not None
            self._failures += 1
            retry_now = self._endpoints.report_failure(current.endpoint, rpc_failure, self._failures)
        for worker_id in (*current.attached, *current.attaching):
            # A closed stream does not threaten the lease; the worker attaches again after a heartbeat was answered.
            session = (
                self._sessions.pop(worker_id, None) if closed_by_server else self._sessions.get(worker_id)
            )
            if session is not None:
                session.on_detached(closed_by_server=closed_by_server)
        if current.is_direct and rpc_failure.code is grpc.StatusCode.UNAVAILABLE and not closed_by_server:
            self._unattended |= dict.fromkeys(current.attached & self._sessions.keys(), current)
        for broken in {*self._unattended.values()} if not self._closed else ():
            Thread(target=self._probe, args=(broken,), name="liveness-probe", daemon=True).start()
        if rpc_failure.code in REFUSED_CODES:
            for session in list(self._sessions.values()):
                session.on_attach_failed(rpc_failure)
        if self._closed or self._reconnect_timer is not None or not self._sessions:
            return
        wait_ms = 0 if retry_now else self._reconnect_delay_ms
        if not retry_now:
            self._reconnect_delay_ms = min(max(wait_ms * 2, RECONNECT_BACKOFF_MS[0]), RECONNECT_BACKOFF_MS[1])
        at_ms = self._scheduler.now_ms() + int(wait_ms * self._random.uniform(0.5, 1))
        self._reconnect_timer = self._scheduler.call_at(at_ms, self._open)

    # -- incoming messages

    def _handle(self, current: _StreamCall, response: AttachResponse) -> None:
        if current is not self._current:
            return
        current.last_received_ms = self._scheduler.now_ms()
        current.recheck_pending = False
        match response.WhichOneof("response"):
            case "attached":
                self._on_attach_reply(current, response.attached)
            case "orders":
                orders = response.orders
                session = self._sessions.get((orders.namespace, orders.worker_instance_key))
                if session is not None:
                    session.on_orders(orders)
            case "pong":
                self._on_pong(current, response.pong)
            case "closing":
                current.is_closing, current.is_serving = True, False

    def _on_attach_reply(self, current: _StreamCall, answer: AttachResponse.Attached) -> None:
        worker_id = answer.namespace, answer.worker_instance_key
        sent_ms = current.attaching.pop(worker_id, None)
        session = self._sessions.get(worker_id)
        if session is None or sent_ms is None:
            return
        if answer.HasField("status"):
            session.on_detached(closed_by_server=False)
            session.on_attach_failed(rpc_failures.failure_of_status(answer.status))
            return
        self._reconnect_delay_ms = 0
        self._failures = 0
        current.attached.add(worker_id)
        granted = answer.HasField("disconnect_grace")
        session.on_attached(duration_to_ms(answer.disconnect_grace) if granted else None, sent_ms)
        self._ping()

    # -- pings

    def _ping(self) -> None:
        """Send a ping, and cancel the stream if an earlier ping has gone unanswered for too long."""
        current, now_ms = self._current, self._scheduler.now_ms()
        late_ms = 0
        if self._ping_timer is not None:
            late_ms = now_ms - self._ping_timer.at_ms
            self._ping_timer.cancel()
            self._ping_timer = None
        interval_ms = self._ping_interval_ms()
        if current is None:
            return
        if current.pings:
            # When many workers attach, their replies arrive before the pong; they show as well that the server is there.
            silent_ms = now_ms - max(min(current.pings.values()), current.last_received_ms)
            if silent_ms > self._ping_timeout_ms(interval_ms):
                if late_ms > RECHECK_MS and not current.recheck_pending:
                    # The pong may have arrived already, and after it the announcement that the stream closes.
                    current.recheck_pending = True
                    self._ping_timer = self._scheduler.call_at(now_ms + RECHECK_MS, self._ping)
                    return
                current.timed_out = True
                current.call.cancel()
                return
        self._send_ping(current, AttachRequest.Ping())
        self._ping_timer = self._scheduler.call_at(now_ms + interval_ms, self._ping)

    def _send_ping(self, current: _StreamCall, ping: AttachRequest.Ping) -> None:
        self._ping_number += 1
        ping.number = self._ping_number
        current.pings[self._ping_number] = self._scheduler.now_ms()
        current.outbox.put(AttachRequest(ping=ping))

    def _ping_timeout_ms(self, interval_ms: int) -> int:
        """Half the grace. With several nodes a quarter, to leave time for a failover: the last answered ping may have been
        sent another quarter earlier."""
        return interval_ms * PINGS_PER_GRACE // 2 if len(self._endpoints) == 1 else interval_ms - 1

    def _ping_interval_ms(self) -> int:
        graces = [session.grace_ms for session in self._sessions.values() if session.grace_ms is not None]
        shortest_ms = min(graces, default=PING_MS_MAX * PINGS_PER_GRACE)
        return min(max(shortest_ms // PINGS_PER_GRACE, PING_MS_MIN), PING_MS_MAX)

    def _on_pong(self, current: _StreamCall, pong: AttachResponse.Pong) -> None:
        number = pong.number
        current.is_direct = current.is_direct or pong.direct
        sent_ms = current.pings.get(number)
        if sent_ms is None:
            return
        current.pings = {other: at_ms for other, at_ms in current.pings.items() if other > number}
        for worker_id in current.attached:
            session = self._sessions.get(worker_id)
            if session is not None:
                session.ping_answered(sent_ms)
        if not (current.is_serving or current.is_closing):
            current.is_serving = True
            Thread(target=self._resolve, args=(current,), name="liveness-resolve", daemon=True).start()
            for session in list(self._sessions.values()):
                self._request_attach(current, session)

    # -- whether the server's process has ended

    def _resolve(self, current: _StreamCall) -> None:
        """Run in a thread of its own, because it blocks."""
        assert current.endpoint is not None
        addresses = server_process.serving_addresses(current.endpoint.address)
        self._scheduler.call_soon(partial(self._ask_whether_direct, current, addresses))

    def _ask_whether_direct(self, current: _StreamCall, addresses: tuple[str, ...]) -> None:
        if addresses and current is self._current:
            current.server_addresses = addresses
            ping = AttachRequest.Ping(server_addresses=addresses, network=network_name())
            self._send_ping(current, ping)

    def _probe(self, broken: _StreamCall) -> None:
        """Run in a thread of its own, because it blocks."""
        if server_process.is_refused(broken.server_addresses):
            self._scheduler.call_soon(partial(self._on_server_ended, broken))

    def _on_server_ended(self, broken: _StreamCall) -> None:
        for worker_id in [worker_id for worker_id, stream in self._unattended.items() if stream is broken]:
            del self._unattended[worker_id]
            if (session := self._sessions.get(worker_id)) is not None:
                session.on_server_ended()
