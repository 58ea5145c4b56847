"""A watcher either gets every event, or learns that retention deleted some before it read them."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from liveness.domain.keys import shard_of
from liveness.v1 import service_pb2
from tests.integration.server.server_harness import SHARDS, Refusal, ServerHarness, refusal
from tests.integration.server.test_watch import Watcher

DAY_MS = 86_400_000
NEIGHBOURS = [name for name in map(str, range(200)) if shard_of("orders", name, SHARDS) == 0]
"""Workers of one shard."""


async def apply_retention_after(harness: ServerHarness, days: int) -> None:
    harness.clock.jump_wall(days * DAY_MS)
    await harness.server.maintenance.checkpoint()
    await harness.server.maintenance.apply_retention()


async def change_sessions(harness: ServerHarness, worker: str, count: int, namespace: str = "orders") -> None:
    """Let `count` lifecycle events of one worker happen."""
    for number in range(count):
        await harness.beat(worker, namespace=namespace, session_id=f"{worker}-{number}")


async def resume(watcher: Watcher) -> Refusal:
    request = service_pb2.WatchEventsRequest(resume_token=watcher.token, **watcher.selection)
    return await refusal(watcher.harness.liveness.WatchEvents(request).read())


@pytest.mark.parametrize("selection", [{}, {"namespace": "orders"}])
async def test_a_resumed_watcher_is_told_what_retention_deleted(
    harness: ServerHarness, selection: dict[str, str]
) -> None:
    harness.lift_rate_limits()
    watcher = await Watcher(harness, **selection).open()
    watcher.stream.cancel()
    await change_sessions(harness, NEIGHBOURS[0], 200)
    deleted_at = harness.clock.wall_ms()
    await apply_retention_after(harness, 31)
    refused = await resume(watcher)
    assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "RESUME_TOKEN_INVALID")
    assert "retention has deleted up to 20" in refused.message
    assert refused.fields["shards"] == "0"
    # A reader of all namespaces misses the shard's take-over as well.
    assert 200 <= int(refused.fields["missing_events"]) <= 201
    assert refused.fields["complete_since"].startswith("2025-06-15T"), deleted_at


async def test_after_such_a_refusal_the_watch_can_begin_anew(harness: ServerHarness) -> None:
    watcher = await Watcher(harness, namespace="orders").open()
    watcher.stream.cancel()
    await change_sessions(harness, "old", 3)
    await apply_retention_after(harness, 31)
    await harness.beat("new")
    assert (await resume(watcher)).reason == "RESUME_TOKEN_INVALID"
    watcher.token = ""
    await watcher.open(from_beginning=True)
    await watcher.until(1)
    assert watcher.names() == [("new", "WorkerRegistered")]
    watcher.stream.cancel()
    await harness.beat("newer")
    await watcher.open()
    await watcher.until(2)
    assert watcher.names()[1] == ("newer", "WorkerRegistered")


async def test_compacted_renewals_are_no_gap(harness: ServerHarness) -> None:
    await harness.beat("w", session_id="s", sequence=1)
    watcher = await Watcher(harness).open()
    watcher.stream.cancel()
    for sequence in range(2, 6):
        await harness.beat("w", session_id="s", sequence=sequence)
    await harness.server.maintenance.checkpoint()
    await harness.beat("later")
    await watcher.open()
    await watcher.until(1)
    assert watcher.names() == [("later", "WorkerRegistered")]


async def test_the_retention_of_another_namespace_is_no_gap(harness: ServerHarness) -> None:
    await harness.configure("billing", event_retention_ms=1_000)
    watcher = await Watcher(harness, namespace="orders").open()
    watcher.stream.cancel()
    await change_sessions(harness, "b", 3, namespace="billing")
    await harness.beat("w")
    await apply_retention_after(harness, 1)
    await watcher.open()
    await watcher.until(1)
    assert watcher.names() == [("w", "WorkerRegistered")]
    everything = Watcher(harness)
    everything.token = (await Watcher(harness).open()).token
    await change_sessions(harness, "c", 3, namespace="billing")
    await apply_retention_after(harness, 1)
    assert (await resume(everything)).reason == "RESUME_TOKEN_INVALID"


async def test_events_that_the_watcher_has_read_may_be_deleted(harness: ServerHarness) -> None:
    watcher = await Watcher(harness, namespace="orders").open()
    await change_sessions(harness, "w", 3)
    await watcher.until(3)
    watcher.stream.cancel()
    await apply_retention_after(harness, 31)
    await harness.beat("later")
    await watcher.open()
    await watcher.until(4)
    assert watcher.names()[3] == ("later", "WorkerRegistered")


async def test_a_quiet_worker_can_be_watched_again_though_events_of_its_neighbours_were_deleted(
    harness: ServerHarness,
) -> None:
    """The stream sends a new token now and then, though it has no events for it."""
    quiet, noisy = NEIGHBOURS[:2]
    await harness.beat(quiet, session_id="s", lease_ms=3_600_000)
    selection: dict[str, Any] = {"namespace": "orders", "worker_instance_key": quiet}
    watcher = await Watcher(harness, **selection).open()
    first = watcher.token
    for number in range(3):
        await harness.beat(noisy, session_id=f"s{number}", lease_ms=3_600_000)
    bookmark = asyncio.ensure_future(watcher.stream.read())
    for _ in range(100):
        if bookmark.done():
            break
        await harness.advance(1_000)
    assert bookmark.done()
    assert not bookmark.result().events
    watcher.token = bookmark.result().resume_token
    watcher.stream.cancel()
    await apply_retention_after(harness, 31)
    await harness.beat(quiet, session_id="again")
    await watcher.open()
    await watcher.until(1)
    assert watcher.names() == [(quiet, "SessionReplaced")]
    stale = Watcher(harness, **selection)
    stale.token = first
    assert (await resume(stale)).reason == "RESUME_TOKEN_INVALID"
