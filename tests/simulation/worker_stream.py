"""The stream of a simulated worker. Does what the SDK's attach stream and worker session do, without threads."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import grpc

from liveness.sdk import local_lease, rpc_failures
from liveness.sdk.attach_stream import PING_MS_MIN, PINGS_PER_GRACE, RECONNECT_BACKOFF_MS
from liveness.sdk.rpc_failures import SHUTTING_DOWN, RpcFailure
from liveness.sdk.session import HEARTBEATS_PER_GRACE, REATTACH_DELAY_MS
from liveness.sdk.values import AttemptKey, duration_to_ms, ms_to_duration, ref_from_proto
from liveness.v1.service_pb2 import AttachRequest, AttachResponse
from liveness.v1.worker_pb2 import WORKER_STATE_ACTIVE
from tests.simulation.labels import worker_label
from tests.simulation.network import Probe

if TYPE_CHECKING:
    from tests.simulation.worker import Run

LATE_MS_MAX = 50
"""A fence that shuts later than this shows that the process was stopped."""
PROBED_WITHIN_S = 1.2
"""The longest time between two attempts to open a stream, and the time that an attempt takes."""


class OpenStream:
    def __init__(self, call: Any, address: str, now_ms: int) -> None:
        self.call = call
        self.address = address
        self.is_serving = False
        self.is_closing = False
        self.is_direct = False
        self.timed_out = False
        self.requested_ms: int | None = None
        """When the attach request without a reply was sent."""
        self.attached = False
        self.pings: dict[int, int] = {}
        self.last_received_ms = now_ms
        self.broke_at = 0.0
        self.probes: list[Probe] = []


class WorkerStream:
    def __init__(self, run: Run, grace_ms: int) -> None:
        self._run = run
        self._asked_ms = grace_ms
        self._current: OpenStream | None = None
        self._wanted = asyncio.Event()
        self._must_reattach = False
        """The server refused to attach the worker on the current stream."""
        self._number = 0
        self._attach_numbers = count(1)
        self._broken: OpenStream | None = None
        """The direct stream that broke last, if the worker has not requested to be attached since."""
        self._kept: tuple[float, frozenset[AttemptKey]] | None = None
        """When a stream broke whose server has ended, and what the worker held then."""

    @property
    def _grace_ms(self) -> int:
        return min(self._asked_ms, self._run.heartbeat_state.lease_ms)

    def lease_confirmed(self) -> None:
        """A heartbeat was answered, and the lease is valid."""
        self._wanted.set()
        if self._must_reattach and self._current is not None and self._current.is_serving:
            self._request_attach(self._current)

    async def keep_open(self) -> None:
        run, delay_ms = self._run, 0
        while not run.ended and not run.leaving:
            await self._wanted.wait()
            stream = self._current = OpenStream(run.liveness.Attach(), run.address, run.clock.monotonic_ms())
            rpc_failure = await self._serve(stream)
            self._current = None
            delay_ms = 0 if stream.attached else delay_ms
            self._on_ended(stream, rpc_failure)
            await run.clock.sleep(delay_ms * run.random.uniform(0.5, 1))
            delay_ms = min(max(delay_ms * 2, RECONNECT_BACKOFF_MS[0]), RECONNECT_BACKOFF_MS[1])

    async def _serve(self, stream: OpenStream) -> RpcFailure:
        pinging = asyncio.get_running_loop().create_task(self._ping_on(stream))
        rpc_failure = RpcFailure(grpc.StatusCode.UNAVAILABLE)
        try:
            async for response in stream.call:
                self._handle(stream, response)
        except grpc.aio.AioRpcError as error:
            rpc_failure = rpc_failures.failure_of_call(error)  # type: ignore[arg-type]
        except asyncio.CancelledError:
            if not stream.call.cancelled():
                raise
            rpc_failure = RpcFailure(grpc.StatusCode.CANCELLED)
        pinging.cancel()
        if stream.is_closing:
            return RpcFailure(grpc.StatusCode.UNAVAILABLE, SHUTTING_DOWN)
        return RpcFailure(grpc.StatusCode.DEADLINE_EXCEEDED) if stream.timed_out else rpc_failure

    def _on_ended(self, stream: OpenStream, rpc_failure: RpcFailure) -> None:
        run = self._run
        stream.broke_at = run.world.now()
        run.fail_over(rpc_failure)
        is_concerned = stream.attached or stream.requested_ms is not None
        if rpc_failure.reason == SHUTTING_DOWN:
            if is_concerned:
                run.set_lease(local_lease.stream_closed_by_server(run.local_lease))
                self._wanted.clear()
                run.send_within(REATTACH_DELAY_MS)
        elif stream.is_direct and stream.attached and rpc_failure.code is grpc.StatusCode.UNAVAILABLE:
            self._broken = stream
        if is_concerned and run.local_lease.grace_ms is not None:
            run.heartbeat_state.limit_interval(
                self._grace_ms // HEARTBEATS_PER_GRACE, run.clock.monotonic_ms()
            )
            run.send_within(self._grace_ms)
        if self._broken is not None and Probe.REFUSED not in self._broken.probes:
            asyncio.get_running_loop().create_task(self._probe(self._broken))

    # -- messages

    def _send(self, stream: OpenStream, request: AttachRequest) -> None:
        asyncio.get_running_loop().create_task(self._write(stream, request))

    async def _write(self, stream: OpenStream, request: AttachRequest) -> None:
        if not stream.call.done():
            await stream.call.write(request)

    def _request_attach(self, stream: OpenStream) -> None:
        run, now_ms = self._run, self._run.clock.monotonic_ms()
        self._must_reattach = False
        self._broken = None
        stream.requested_ms = now_ms
        run.set_lease(local_lease.attach_requested(run.local_lease, self._grace_ms, now_ms))
        namespace, key = run.key
        request = AttachRequest.Attach(
            namespace=namespace,
            worker_instance_key=key,
            session_id=run.session,
            disconnect_grace=ms_to_duration(self._grace_ms),
            attach_number=next(self._attach_numbers),
        )
        self._send(stream, AttachRequest(attach=request))

    def _handle(self, stream: OpenStream, response: AttachResponse) -> None:
        stream.last_received_ms = self._run.clock.monotonic_ms()
        match response.WhichOneof("response"):
            case "attached":
                self._on_attach_reply(stream, response.attached)
            case "orders":
                self._on_orders(response.orders)
            case "pong":
                self._on_pong(stream, response.pong)
            case "closing":
                stream.is_closing, stream.is_serving = True, False

    def _on_attach_reply(self, stream: OpenStream, answer: AttachResponse.Attached) -> None:
        run, sent_ms = self._run, stream.requested_ms
        if sent_ms is None:
            return
        stream.requested_ms = None
        now_ms = run.clock.monotonic_ms()
        if answer.HasField("status"):
            self._must_reattach = True
            run.heartbeat_state.limit_interval(self._grace_ms // HEARTBEATS_PER_GRACE, now_ms)
            run.send_within(REATTACH_DELAY_MS)
            return
        stream.attached = True
        run.heartbeat_state.limit_interval(None, now_ms)
        granted_ms = duration_to_ms(answer.disconnect_grace) if answer.HasField("disconnect_grace") else None
        run.set_lease(local_lease.attached(run.local_lease, granted_ms, sent_ms))
        if self._kept is not None:
            broke_at, held = self._kept
            self._kept = None
            if run.world.now() - broke_at > self._grace_ms / 1_000 and held & run.holds.keys():
                run.world.sometimes(
                    "running work outlived a lone server that was dead for longer than the grace"
                )

    def _on_orders(self, orders: AttachResponse.Orders) -> None:
        run = self._run
        if run.ended or orders.lease_epoch < run.heartbeat_state.epoch:
            return
        if orders.state != WORKER_STATE_ACTIVE:
            if orders.lease_epoch == run.heartbeat_state.epoch:
                run.set_lease(local_lease.lease_ended(run.local_lease))
                run.send_within(0)
            return
        cancelled = map(ref_from_proto, orders.cancel_activities)
        for loss in run.heartbeat_state.revoke(cancelled, run.clock.monotonic_ms()):
            run.lose(loss.ref)

    # -- pings

    async def _ping_on(self, stream: OpenStream) -> None:
        run, interval_ms = self._run, max(self._grace_ms // PINGS_PER_GRACE, PING_MS_MIN)
        is_lone = run.world.plan.nodes_max == 1
        timeout_ms = interval_ms * PINGS_PER_GRACE // 2 if is_lone else interval_ms - 1
        while not stream.call.done():
            now_ms = run.clock.monotonic_ms()
            if (
                stream.pings
                and now_ms - max(min(stream.pings.values()), stream.last_received_ms) > timeout_ms
            ):
                stream.timed_out = True
                stream.call.cancel()
                return
            self._send_ping(stream, AttachRequest.Ping())
            await run.clock.sleep(interval_ms)

    def _send_ping(self, stream: OpenStream, ping: AttachRequest.Ping) -> None:
        self._number += 1
        ping.number = self._number
        stream.pings[self._number] = self._run.clock.monotonic_ms()
        self._send(stream, AttachRequest(ping=ping))

    def _on_pong(self, stream: OpenStream, pong: AttachResponse.Pong) -> None:
        run, sent_ms = self._run, stream.pings.get(pong.number)
        stream.is_direct = stream.is_direct or pong.direct
        if sent_ms is None:
            return
        stream.pings = {number: at_ms for number, at_ms in stream.pings.items() if number > pong.number}
        if stream.attached:
            run.set_lease(local_lease.ping_answered(run.local_lease, sent_ms))
        if not (stream.is_serving or stream.is_closing):
            stream.is_serving = True
            self._send_ping(stream, AttachRequest.Ping(server_addresses=[stream.address]))
            self._request_attach(stream)

    # -- whether the server's process has ended

    async def _probe(self, broken: OpenStream) -> None:
        run = self._run
        found = await run.world.network.probe(run.host, broken.address)
        broken.probes.append(found)
        if found is Probe.REFUSED and self._broken is broken:
            now_ms = run.clock.monotonic_ms()
            if run.trusts_its_lease:
                self._kept = broken.broke_at, frozenset(run.holds)
            run.set_lease(local_lease.server_ended(run.local_lease, now_ms))

    def check_fence(self, late_ms: int) -> None:
        """The worker gives its running work up because the deadline of its local lease has passed."""
        run, world = self._run, self._run.world
        without_grace = replace(run.local_lease, grace_ms=None)
        if not local_lease.is_valid(without_grace, run.clock.monotonic_ms()):
            return
        world.sometimes("worker gave its work up when its disconnect grace ended")
        broken, node_host = self._broken, world.node_hosts[0]
        if broken is None or len(world.node_hosts) > 1 or late_ms > LATE_MS_MAX:
            return
        is_dead = node_host.died_at is not None and node_host.died_at <= broken.broke_at
        had_time = bool(broken.probes) or world.now() > broken.broke_at + PROBED_WITHIN_S
        if is_dead and had_time and Probe.NO_ANSWER not in broken.probes:
            world.report(
                "no needless loss",
                f"{run.session} gives its work up {world.now() - broken.broke_at:.2f} s after its server was killed",
                (worker_label(run.key), node_host.host),
            )
