"""The network between a worker and its server is cut, silent, slow, half-closed, or loses an answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from liveness.v1 import activity_pb2, worker_pb2
from tests.system.worker_processes.namespace_client import NamespaceClient, names
from tests.system.worker_processes.tcp_proxy import ForwardMode, Proxy
from tests.system.worker_processes.worker_notes import Action
from tests.system.worker_processes.worker_processes import WorkerGroup, WorkerProcess, until

LONG = 300.0
ACTIVE = worker_pb2.WORKER_STATE_ACTIVE
STARTED = activity_pb2.ACTIVITY_STATE_STARTED


@pytest.mark.parametrize(
    ("lease", "grace"),
    [pytest.param(2.5, 1.0, id="by the grace"), pytest.param(4.0, None, id="by the lease")],
)
async def test_a_disconnected_worker_stops_before_another_starts_its_activity(
    worker_group: WorkerGroup,
    namespace_client: NamespaceClient,
    proxy: Proxy,
    lease: float,
    grace: float | None,
) -> None:
    alone = await _holding(worker_group, namespace_client, proxy, "gated", lease=lease, grace=grace)
    heir = await worker_group.join("heir", lease=LONG, grace=None)
    proxy.black_hole()
    lost = await alone.wait_for_note(Action.LOST, "job", attempt=1)
    began = await heir.wait_for_note(Action.STARTED, "job", attempt=2)
    assert lost.at <= began.at, f"{(lost.at - began.at) * 1_000:.1f} ms late"
    worker_group.open_gate("job")
    assert await namespace_client.completion("job", "gated") == {"worker": "heir", "attempt": 2}
    await alone.wait_for_note(Action.STOPPED, "job", attempt=1)
    assert not alone.noted(Action.FINISHED, "job")
    proxy.heal()
    await _works_again(alone, heir, namespace_client)
    await namespace_client.assert_each_completed_once()


async def test_a_completion_that_arrives_after_the_lease_is_rejected(
    worker_group: WorkerGroup, namespace_client: NamespaceClient, proxy: Proxy
) -> None:
    """When the network heals, it delivers everything that was sent, including a completion."""
    alone = await _holding(worker_group, namespace_client, proxy, "gated", lease=2.0, grace=None)
    heir = await worker_group.join("heir", lease=LONG, grace=None)
    proxy.black_hole(ForwardMode.HOLD)
    worker_group.open_gate("job")
    await alone.wait_for_note(Action.FINISHED, "job", attempt=1)
    assert await namespace_client.completion("job", "gated") == {"worker": "heir", "attempt": 2}
    proxy.heal()
    await _works_again(alone, heir, namespace_client)
    counted = await alone.wait_for_note(Action.COUNTED)
    assert counted.lost == 1, alone.recent_notes()
    await namespace_client.assert_each_completed_once()


async def test_a_connection_that_returns_within_the_grace_costs_nothing(
    worker_group: WorkerGroup, namespace_client: NamespaceClient, proxy: Proxy
) -> None:
    steady = await _holding(worker_group, namespace_client, proxy, "gated", lease=LONG, grace=30.0)
    for _ in range(3):
        await _connected_anew(namespace_client, proxy, proxy.cut)
    await _completes_unharmed(steady, worker_group, namespace_client)


@pytest.mark.parametrize("towards_server", [True, False])
async def test_a_worker_replaces_a_half_closed_connection(
    worker_group: WorkerGroup, namespace_client: NamespaceClient, proxy: Proxy, towards_server: bool
) -> None:
    steady = await _holding(worker_group, namespace_client, proxy, "gated", lease=LONG, grace=30.0)
    await _connected_anew(namespace_client, proxy, lambda: proxy.half_close(towards_server=towards_server))
    await _completes_unharmed(steady, worker_group, namespace_client)


async def test_a_slow_network_does_no_harm(
    worker_group: WorkerGroup, namespace_client: NamespaceClient, proxy: Proxy
) -> None:
    proxy.delay_seconds = 0.3
    slow = await worker_group.join("slow", address=proxy.address, lease=5.0, grace=4.0, slots=8)
    jobs = names("job", 8)
    for name in jobs:
        await namespace_client.schedule(name, "quick", ms=100)
    for name in jobs:
        assert await namespace_client.completion(name, "quick") == {"worker": "slow", "attempt": 1}
    assert not slow.noted(Action.LOST)
    assert (await namespace_client.worker("slow")).lease_epoch == 1
    await namespace_client.assert_each_completed_once()


async def test_an_activity_whose_hand_out_was_lost_is_handed_out_again(
    worker_group: WorkerGroup, namespace_client: NamespaceClient, proxy: Proxy
) -> None:
    await namespace_client.configure(dispatch_timeout={"seconds": 1})
    deaf = await worker_group.join("deaf", address=proxy.address, lease=LONG, grace=30.0)
    await namespace_client.schedule("warm", "quick", ms=10)
    await namespace_client.completion("warm", "quick")
    proxy.lose_answers()
    await namespace_client.schedule("job", "quick", ms=10)
    held = await namespace_client.activity_until("job", "quick", lambda activity: activity.state == STARTED)
    assert (held.worker_instance_key, held.attempt) == ("deaf", 1)
    # The answer is lost, whether or not it has left the server yet.
    proxy.heal()
    proxy.cut()
    assert await namespace_client.completion("job", "quick") == {"worker": "deaf", "attempt": 2}
    assert [note.attempt for note in deaf.noted(Action.STARTED, "job")] == [2]
    done = await namespace_client.activity("job", "quick")
    assert (done.failures, done.worker_deaths) == (0, 0)
    await namespace_client.assert_each_completed_once()
    recent_notes = [event.type for event in await namespace_client.events() if event.workflow_id == "job"]
    assert recent_notes.count("ActivityStarted") == 2
    assert recent_notes.count("ActivityGivenBack") == 1


async def _holding(
    worker_group: WorkerGroup,
    namespace_client: NamespaceClient,
    proxy: Proxy,
    activity_type: str,
    *,
    lease: float,
    grace: float | None,
) -> WorkerProcess:
    """Start a worker behind the proxy that is running `job`."""
    worker = await worker_group.join("behind", address=proxy.address, lease=lease, grace=grace)
    await namespace_client.schedule("job", activity_type)
    await worker.wait_for_note(Action.STARTED, "job")
    await namespace_client.worker_until("behind", lambda seen: seen.attached)
    return worker


async def _works_again(
    worker: WorkerProcess, other: WorkerProcess, namespace_client: NamespaceClient
) -> None:
    await other.kill()
    await namespace_client.worker_until("behind", lambda seen: seen.state == ACTIVE and seen.attached)
    await namespace_client.schedule("next", "quick", ms=10)
    assert await namespace_client.completion("next", "quick") == {"worker": "behind", "attempt": 1}
    assert worker.alive


async def _completes_unharmed(
    worker: WorkerProcess, worker_group: WorkerGroup, namespace_client: NamespaceClient
) -> None:
    worker_group.open_gate("job")
    assert await namespace_client.completion("job", "gated") == {"worker": "behind", "attempt": 1}
    assert not worker.noted(Action.LOST)
    assert (await namespace_client.worker("behind")).lease_epoch == 1
    await namespace_client.assert_each_completed_once()


async def _connected_anew(
    namespace_client: NamespaceClient, proxy: Proxy, disturb: Callable[[], None]
) -> None:
    """Wait until the worker has attached to a stream that was opened after the disturbance."""
    accepted = proxy.accepted
    disturb()
    await until(lambda: proxy.accepted > accepted)
    await namespace_client.worker_until("behind", lambda seen: seen.attached and not seen.suspect)
