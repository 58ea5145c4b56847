"""A worker that cannot reach its server stops its activities before the server reschedules them."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from queue import SimpleQueue

import pytest

from liveness.sdk import ActivityLost, FencingToken, LeaseLost, Worker
from liveness.sdk.attach_stream import AttachStream
from liveness.sdk.values import to_duration
from liveness.v1.service_pb2 import AttachRequest, AttachResponse
from liveness.v1.worker_pb2 import (
    INACTIVE_REASON_DISCONNECTED,
    INACTIVE_REASON_LEASE_EXPIRED,
    WORKER_STATE_ACTIVE,
    WORKER_STATE_CLEANED_UP,
    WORKER_STATE_INACTIVE,
)
from tests.system.sdk.server_process import GAP_S, SECONDS_MAX, LivenessServer, call_proxy, until
from tests.system.sdk.worker_programs import HOLDER, program


async def test_a_server_that_does_not_answer_costs_the_binding(own_server: LivenessServer) -> None:
    """A silence shorter than the lease costs nothing, and later bindings are not affected."""
    async with Worker(own_server.address, task_queue="queue", lease=1, disconnect_grace=None) as worker:
        binding = worker.bind("a")

        async def hold() -> None:
            async with binding:
                own_server.send(signal.SIGSTOP)
                await asyncio.wait_for(asyncio.Event().wait(), SECONDS_MAX)

        with pytest.raises(LeaseLost):
            await hold()
        own_server.send(signal.SIGCONT)
        async with worker.bind("b") as another:
            assert another.fencing_token.attempt == 1
        key = worker.instance_key
        until(lambda: not own_server.bound("default", key))
        assert own_server.worker("default", key).state == WORKER_STATE_ACTIVE


def test_a_thread_learns_of_the_loss(own_server: LivenessServer) -> None:
    def hold(worker: Worker) -> None:
        with worker.bind("a") as binding:
            own_server.send(signal.SIGSTOP)
            assert binding.lost.wait_blocking(SECONDS_MAX)
            own_server.send(signal.SIGCONT)
            binding.check()

    with Worker(own_server.address, task_queue="queue", lease=1) as worker, pytest.raises(LeaseLost):
        hold(worker)


async def test_without_its_stream_a_worker_trusts_its_lease_only_for_the_grace(
    own_server: LivenessServer,
) -> None:
    async with Worker(own_server.address, task_queue="queue", lease=600, disconnect_grace=1) as worker:
        key = worker.instance_key
        until(lambda: own_server.worker("default", key).attached)

        async def hold() -> None:
            async with worker.bind("a"):
                own_server.send(signal.SIGSTOP)
                await asyncio.wait_for(asyncio.Event().wait(), SECONDS_MAX)

        with pytest.raises(LeaseLost):
            await hold()
        own_server.send(signal.SIGCONT)
        async with worker.bind("b"):
            pass


async def test_pings_keep_the_grace_from_ending(server: LivenessServer, namespace: str) -> None:
    """With so long a lease, no heartbeat would come in time."""
    async with Worker(server.address, namespace=namespace, lease=3_600, disconnect_grace=4) as worker:
        watchdog = worker._live_session()._watchdog
        until(lambda: watchdog.local_lease.grace_ms == 4_000)
        first_ms = watchdog.local_lease.last_contact_ms
        until(lambda: watchdog.local_lease.last_contact_ms >= first_ms + 2_000)
        assert watchdog.local_lease.renewed_ms <= first_ms, "and it was not by heartbeats"


async def test_a_process_that_was_stopped_reads_its_stream_before_it_gives_up(
    server: LivenessServer, namespace: str
) -> None:
    """The server's messages are unread: the answer to the ping, or the notice that the stream closes."""
    seen: SimpleQueue[bool] = SimpleQueue()
    with call_proxy(server.address) as proxy:
        async with Worker(proxy.address, namespace=namespace, lease=3_600, disconnect_grace=2) as worker:
            until(lambda: server.worker(namespace, worker.instance_key).attached)
            connection = worker._connection
            assert connection is not None
            scheduler, stream = connection.scheduler, connection.stream
            current = stream._current
            assert current is not None

            def stand_still() -> None:
                """Block until the answer is overdue. Callbacks posted meanwhile run after the timers."""
                timer = stream._ping_timer
                assert timer is not None
                patience_ms = stream._ping_timeout_ms(stream._ping_interval_ms())
                overdue_ms = max(timer.at_ms, max(current.pings.values()) + patience_ms) + 100
                while scheduler.now_ms() <= overdue_ms:
                    time.sleep(GAP_S)
                scheduler.call_soon(lambda: seen.put(current.timed_out))

            proxy.is_muted.set()
            muted_ms = scheduler.now_ms()
            until(lambda: max(list(current.pings.values()), default=0) > muted_ms)
            scheduler.call_soon(stand_still)
            assert not await asyncio.to_thread(seen.get, timeout=SECONDS_MAX)
            await asyncio.to_thread(until, lambda: current.timed_out)


async def test_attach_requests_are_numbered_over_all_streams_of_a_session(
    server: LivenessServer, namespace: str
) -> None:
    """So that a server can tell a stream that the worker has left from the one that replaced it."""
    with call_proxy(server.address) as proxy:

        def attach_requests() -> list[AttachRequest.Attach]:
            requests = [AttachRequest.FromString(data) for name, data in proxy.requests if name == "Attach"]
            return [request.attach for request in requests if request.HasField("attach")]

        async with Worker(proxy.address, namespace=namespace, lease=3_600, disconnect_grace=1):
            await asyncio.to_thread(until, attach_requests)
            proxy.is_muted.set()
            await asyncio.to_thread(until, lambda: proxy.calls["Attach"] > 1)
            proxy.is_muted.clear()
            await asyncio.to_thread(until, lambda: len(attach_requests()) > 1)
        first, second, *_ = attach_requests()
        assert first.session_id == second.session_id
        assert 0 < first.attach_number < second.attach_number


async def test_a_grace_counts_from_its_request(server: LivenessServer, namespace: str) -> None:
    """The server may have granted it and the answer may have been lost."""
    with call_proxy(server.address) as proxy:
        proxy.held_back = lambda response: AttachResponse.FromString(response).HasField("attached")
        async with Worker(
            proxy.address, namespace=namespace, task_queue="queue", lease=3_600, disconnect_grace=1
        ) as worker:

            async def hold() -> None:
                async with worker.bind("a"):
                    await asyncio.wait_for(asyncio.Event().wait(), SECONDS_MAX)

            with pytest.raises(LeaseLost):
                await hold()


async def test_a_server_that_announces_its_close_costs_nothing(own_server: LivenessServer) -> None:
    """However long it stays away, within the lease."""
    async with Worker(own_server.address, task_queue="queue", lease=600, disconnect_grace=1) as worker:
        key = worker.instance_key
        until(lambda: own_server.worker("default", key).attached)
        async with worker.bind("a") as binding:
            own_server.end(signal.SIGTERM)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(binding.lost.wait(), 2)  # twice the grace
            own_server.start()
            until(lambda: own_server.worker("default", key).attached)
            binding.check()
            assert own_server.bound("default", key) == {"a"}


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_killed_server_costs_nothing_within_the_lease(own_server: LivenessServer, host: str) -> None:
    """However long it stays away: nobody else could have given the work away."""
    address = own_server.address.replace("127.0.0.1", host)
    async with Worker(address, task_queue="queue", lease=600, disconnect_grace=1) as worker:
        key, stream = worker.instance_key, stream_of(worker)
        until(lambda: own_server.worker("default", key).attached and is_direct(stream))
        async with worker.bind("a") as binding:
            own_server.end(signal.SIGKILL)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(binding.lost.wait(), 2)  # twice the grace
            own_server.start()
            until(lambda: own_server.worker("default", key).attached)
            binding.check()
            assert own_server.bound("default", key) == {"a"}
        until(lambda: is_direct(stream))
        async with worker.bind("b"):
            own_server.end(signal.SIGKILL)
            own_server.start()
            until(lambda: own_server.worker("default", key).attached)


async def test_a_proxy_that_ends_costs_the_work_of_those_behind_it(
    server: LivenessServer, namespace: str
) -> None:
    """The proxy's port refuses connections, but the server lives, and counts the grace."""
    with call_proxy(server.address) as proxy:
        async with Worker(
            proxy.address, namespace=namespace, task_queue="queue", lease=600, disconnect_grace=1
        ) as worker:
            key, stream = worker.instance_key, stream_of(worker)
            until(lambda: server.worker(namespace, key).attached and not is_direct(stream))

            async def hold() -> None:
                async with worker.bind("a"):
                    await asyncio.to_thread(proxy.close)
                    await asyncio.wait_for(asyncio.Event().wait(), SECONDS_MAX)

            with pytest.raises(LeaseLost):
                await hold()
            until(lambda: server.worker(namespace, key).state == WORKER_STATE_INACTIVE)
            assert server.worker(namespace, key).inactive_reason == INACTIVE_REASON_DISCONNECTED


def stream_of(worker: Worker) -> AttachStream:
    connection = worker._connection
    assert connection is not None
    return connection.stream


def is_direct(stream: AttachStream) -> bool:
    """Wait until the server has said whether the stream is direct, and return what it said."""
    current = until(lambda: stream._current)
    assert current is not None
    until(lambda: current.server_addresses and not current.pings)
    return current.is_direct


async def test_an_acknowledgement_by_a_closing_server_costs_nothing(
    own_server: LivenessServer,
) -> None:
    """The worker opens a stream again, because a server answered, and finds no server any more."""
    with call_proxy(own_server.address) as proxy:
        async with Worker(proxy.address, task_queue="queue", lease=600, disconnect_grace=1) as worker:
            key, session = worker.instance_key, worker._live_session()
            until(lambda: own_server.worker("default", key).attached)
            async with worker.bind("a") as binding:
                with proxy.holding_answers("RecordWorkerHeartbeats") as answered:
                    session.send_heartbeat_now()
                    until(answered.is_set)
                    own_server.end(signal.SIGTERM)
                    until(lambda: session._watchdog.local_lease.grace_ms is None)
                knocked = proxy.calls["Attach"]
                await asyncio.to_thread(until, lambda: proxy.calls["Attach"] > knocked + 1)
                assert session._watchdog.local_lease.grace_ms is None, (
                    "nobody has heard that it wants to stand there"
                )
                own_server.start()
                await asyncio.to_thread(until, lambda: own_server.worker("default", key).attached)
                binding.check()
                assert own_server.bound("default", key) == {"a"}


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_a_restart_of_the_server_within_the_lease_costs_nothing(
    own_server: LivenessServer, how: signal.Signals
) -> None:
    async with Worker(own_server.address, task_queue="queue", lease=600, disconnect_grace=300) as worker:
        key = worker.instance_key
        until(lambda: own_server.worker("default", key).attached)
        async with worker.bind("a") as binding:
            own_server.end(how)
            own_server.start()
            until(lambda: own_server.worker("default", key).attached)
            assert own_server.bound("default", key) == {"a"}
            assert binding.fencing_token == FencingToken(1, 1)
            async with worker.bind("b"):
                pass


def test_a_process_that_was_stopped_too_long_finds_its_binding_lost(
    server: LivenessServer, namespace: str
) -> None:
    options = {"namespace": namespace, "lease": 1, "disconnect_grace": None, "instance_key": "mine"}
    with program(HOLDER, server.address, json.dumps(options)) as holder:
        assert holder.next_line("holding") == ["holding", "a0", "mine", "1", "1"]
        holder.send(signal.SIGSTOP)
        until(lambda: server.worker(namespace, "mine").state == WORKER_STATE_INACTIVE)
        assert server.worker(namespace, "mine").inactive_reason == INACTIVE_REASON_LEASE_EXPIRED
        holder.send(signal.SIGCONT)
        assert holder.next_line("check:") == ["check:", "LeaseLost"]
        assert holder.next_line("lost:") == ["lost:", "LeaseLost"]
        assert holder.next_line("holding") == ["holding", "a1", "mine", "1", "2"]
        until(lambda: not server.worker(namespace, "mine").cancel_activities)


def test_a_killed_process_is_detected_within_the_grace(server: LivenessServer, namespace: str) -> None:
    options = {"namespace": namespace, "lease": 600, "disconnect_grace": 0.5, "instance_key": "mine"}
    with program(HOLDER, server.address, json.dumps(options)) as holder:
        holder.next_line("holding")
        until(lambda: server.worker(namespace, "mine").attached)
        holder.send(signal.SIGKILL)
        until(lambda: server.worker(namespace, "mine").state == WORKER_STATE_INACTIVE)
        assert server.worker(namespace, "mine").inactive_reason == INACTIVE_REASON_DISCONNECTED


@pytest.mark.parametrize("own_key", [True, False])
def test_a_cleaned_up_worker_continues_in_a_new_session(
    server: LivenessServer, namespace: str, own_key: bool
) -> None:
    server.configure(namespace, cleanup_delay=to_duration(0))
    options = {"namespace": namespace, "lease": 1, "disconnect_grace": None}
    if own_key:
        options["instance_key"] = "mine"
    with program(HOLDER, server.address, json.dumps(options)) as holder:
        key = holder.next_line("holding")[2]
        holder.send(signal.SIGSTOP)
        until(lambda: server.worker(namespace, key).state == WORKER_STATE_CLEANED_UP)
        holder.send(signal.SIGCONT)
        holder.next_line("lost:")
        _, name, another, _, epoch = holder.next_line("holding")
        assert (name, another == key, epoch) == ("a1", own_key, "2" if own_key else "1")
        assert server.bound(namespace, another) == {"a1"}


async def test_a_key_that_said_goodbye_starts_again_after_its_cleanup(
    server: LivenessServer, namespace: str
) -> None:
    server.configure(namespace, cleanup_delay=to_duration(0))
    for epoch in (1, 2, 3):
        async with Worker(
            server.address, namespace=namespace, task_queue="queue", instance_key="mine"
        ) as worker:
            assert worker.lease_epoch == epoch
        until(lambda: server.worker(namespace, "mine").state == WORKER_STATE_CLEANED_UP)


async def test_lost_answers_cost_nothing(server: LivenessServer, namespace: str) -> None:
    """A heartbeat whose answer was lost is repeated, and the server recognises it."""
    with call_proxy(server.address) as proxy:
        async with Worker(proxy.address, namespace=namespace, task_queue="queue", lease=60) as worker:
            for number in range(5):
                proxy.lose_answers("RecordWorkerHeartbeats", 2)
                async with worker.bind(f"a{number}") as binding:
                    assert server.bound(namespace, worker.instance_key) == {f"a{number}"}
                    assert binding.fencing_token == FencingToken(1, 1)
            key = worker.instance_key
            until(lambda: not server.bound(namespace, key))


async def test_a_lost_binding_stays_lost(own_server: LivenessServer) -> None:
    """Even if the server had not rescheduled it yet."""
    async with Worker(own_server.address, task_queue="queue", lease=1, disconnect_grace=None) as worker:
        binding = worker.bind("a")

        async def hold() -> None:
            async with binding:
                own_server.send(signal.SIGSTOP)
                try:
                    await binding.lost.wait()
                except asyncio.CancelledError:
                    pass
                own_server.send(signal.SIGCONT)
                async with worker.bind("b"):
                    binding.check()

        with pytest.raises(ActivityLost):
            await hold()
