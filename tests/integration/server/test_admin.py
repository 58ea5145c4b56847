"""AdminService: settings, shards, tasks."""

from __future__ import annotations

import json

import grpc

from liveness.domain.activity import Activity
from liveness.domain.keys import ActivityKey
from liveness.domain.reactions import ActivityRescheduleTask
from liveness.store.api import TaskState, TaskUpdate
from liveness.v1 import admin_pb2
from tests.integration.engine.engine import activity, duration
from tests.integration.server.server_harness import (
    ACTIVE,
    INACTIVE,
    NAMESPACE,
    SHARDS,
    ServerHarness,
    config,
    refusal,
)

PENDING = admin_pb2.TASK_STATE_PENDING
RETRYING = admin_pb2.TASK_STATE_RETRYING
DEAD_LETTERED = admin_pb2.TASK_STATE_DEAD_LETTERED
DONE = admin_pb2.TASK_STATE_DONE
DISCARDED = admin_pb2.TASK_STATE_DISCARDED


class FailingSink:
    """A sink that fails for some activities until the test clears `poison`."""

    def __init__(self, *poison: str, message: str = "no") -> None:
        self.poison = set(poison)
        self.message = message
        self.offered: list[str] = []

    async def deliver(self, key: ActivityKey, activity: Activity, task: ActivityRescheduleTask) -> None:
        if key.activity_id in self.poison:
            raise RuntimeError(self.message)
        self.offered.append(key.activity_id)


# -- settings


async def test_settings_apply_at_once(harness: ServerHarness) -> None:
    await harness.beat("before", lease_ms=60_000)
    answer = await harness.configure(max_lease_ms=40_000, default_lease_ms=20_000)
    assert answer.overrides == config(max_lease_ms=40_000, default_lease_ms=20_000)
    assert answer.effective.max_lease == duration(40_000)
    assert answer.effective.min_lease == duration(1_000), "every effective field is set"
    assert (await harness.beat("after")).granted_lease_duration == duration(20_000)
    assert (await harness.beat("before", lease_ms=60_000)).granted_lease_duration == duration(40_000)
    assert (await harness.beat(namespace="other")).granted_lease_duration == duration(30_000)


async def test_changed_settings_apply_to_unchanged_heartbeats(harness: ServerHarness) -> None:
    for sequence in range(1, 4):
        await harness.beat(session_id="s", sequence=sequence, lease_ms=60_000)
    await harness.configure("", max_lease_ms=45_000)
    renewed = await harness.beat(session_id="s", sequence=4, lease_ms=60_000)
    assert renewed.granted_lease_duration == duration(45_000)


async def test_namespaces_inherit_settings_they_do_not_override(harness: ServerHarness) -> None:
    await harness.configure("", default_lease_ms=10_000, max_workers=7)
    await harness.configure(max_workers=3)
    mine, other = await harness.config(), await harness.config("other")
    assert (mine.effective.max_workers, mine.effective.default_lease) == (3, duration(10_000))
    assert (other.effective.max_workers, other.effective.default_lease) == (7, duration(10_000))
    assert mine.overrides == config(max_workers=3)
    assert other.overrides == config()
    answer = await harness.configure(unset=("max_workers",))
    assert (answer.effective.max_workers, answer.overrides) == (7, config())


async def test_settings_survive_a_restart_and_are_recorded_as_events(harness: ServerHarness) -> None:
    await harness.configure(cleanup_delay_ms=1_234, max_workers=2)
    await harness.configure(unset=("max_workers",))
    await harness.configure(cleanup_delay_ms=1_234)  # changes nothing
    before = await harness.config()
    await harness.restart()
    assert await harness.config() == before
    log = (await harness.dump())["log"]
    changes = [row for row in log if "ConfigChanged" in row]
    assert [json.loads(row[10]) for row in changes] == [
        {"set": {"cleanup_delay_ms": 1_234.0, "max_workers": 2.0}, "unset": [], "reason": "", "by": ""},
        {"set": {}, "unset": ["max_workers"], "reason": "", "by": ""},
    ]


async def test_a_default_that_contradicts_the_overrides_of_a_namespace_is_refused(
    harness: ServerHarness,
) -> None:
    await harness.configure(default_lease_ms=50_000)
    refused = await refusal(harness.configure("", max_lease_ms=40_000))
    assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert (await harness.config("")).overrides == config()


async def test_the_cleanup_delay_can_be_changed_while_running(harness: ServerHarness) -> None:
    await harness.configure(cleanup_delay_ms=0)
    await harness.beat("a")
    await harness.shut_down("a")
    await harness.configure(unset=("cleanup_delay",))
    await harness.beat("b")
    await harness.shut_down("b")
    await harness.advance(1_000)
    assert (await refusal(harness.beat("a"))).reason == "WORKER_CLEANED_UP"
    assert (await harness.describe("b")).state == INACTIVE


async def test_a_tombstone_retention_of_zero_keeps_tombstones_for_ever(harness: ServerHarness) -> None:
    await harness.configure(cleanup_delay_ms=0, tombstone_retention_ms=0)
    await harness.beat()
    await harness.shut_down()
    await harness.advance(100)
    harness.clock.move(100 * 365 * 86_400_000)
    for _ in range(5):
        await harness.advance(1_000)
    await harness.server.maintenance.apply_retention()
    assert (await refusal(harness.beat())).reason == "WORKER_CLEANED_UP"


# -- shards


async def test_listed_shards_report_their_epoch_workers_and_checkpoint(harness: ServerHarness) -> None:
    for number in range(40):
        await harness.beat(f"w{number}")
    for number in range(10):
        await harness.shut_down(f"w{number}")
    shards = (await harness.admin.ListShards(admin_pb2.ListShardsRequest())).shards
    assert [shard.shard_id for shard in shards] == list(range(SHARDS))
    assert all(shard.serving and shard.epoch == 1 for shard in shards)
    assert sum(shard.active_workers for shard in shards) == 30
    assert sum(shard.inactive_workers for shard in shards) == 10
    assert sum(shard.last_sequence - 1 for shard in shards) == 50, (
        "each shard's log begins with its take-over"
    )
    assert {(await harness.describe(f"w{n}")).shard_id for n in range(40)} == set(range(SHARDS))
    await harness.restart()
    shards = (await harness.admin.ListShards(admin_pb2.ListShardsRequest())).shards
    assert {shard.epoch for shard in shards} == {2}
    assert all(shard.checkpoint_sequence == shard.last_sequence - 1 for shard in shards), (
        "the server stopped gracefully"
    )


# -- tasks


async def lose(
    harness: ServerHarness, *activities: str, worker: str = "w", namespace: str = NAMESPACE
) -> None:
    await harness.beat(worker, namespace=namespace, bound_activities=[activity(name) for name in activities])
    await harness.shut_down(worker, namespace)


async def test_a_poison_activity_is_retried_until_dead_lettered_and_blocks_no_other(
    stopped_harness: ServerHarness,
) -> None:
    sink = FailingSink("poison")
    harness = await stopped_harness.start(sink=sink, task_attempts_max=4)
    await lose(harness, "a", "poison", "b")
    await harness.advance(1)
    assert sorted(sink.offered) == ["a", "b"]
    [task] = await harness.tasks()
    assert (task.state, task.attempts, task.activity.activity_id) == (RETRYING, 1, "poison")
    assert task.last_error == "RuntimeError: no"
    assert (task.namespace, task.worker_instance_key, task.lease_epoch) == (NAMESPACE, "w", 1)
    waits = []
    for attempts in (2, 3, 4):
        waited = 0
        while (await harness.tasks())[0].attempts < attempts:
            await harness.advance(50)
            waited += 50
        waits.append(waited)
    assert waits[0] >= 250
    assert waits[2] > waits[0], "the backoff grows"
    [task] = await harness.tasks()
    assert task.state == DEAD_LETTERED
    await harness.advance(600_000)
    assert (await harness.tasks())[0].attempts == 4, "a dead letter is not retried"
    await lose(harness, "c", worker="other")
    await harness.advance(1)
    assert sorted(sink.offered) == ["a", "b", "c"]

    sink.poison.clear()
    retried = (await harness.admin.RetryTask(admin_pb2.RetryTaskRequest(task_id=task.task_id))).task
    assert (retried.state, retried.attempts) == (PENDING, 0)
    await harness.advance(1)
    assert sorted(sink.offered) == ["a", "b", "c", "poison"]
    assert await harness.tasks() == []
    refused = await refusal(harness.admin.RetryTask(admin_pb2.RetryTaskRequest(task_id=task.task_id)))
    assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "TASK_FINISHED")


async def test_a_discarded_task_is_never_retried(stopped_harness: ServerHarness) -> None:
    sink = FailingSink("poison")
    harness = await stopped_harness.start(sink=sink)
    await lose(harness, "poison")
    await harness.advance(1)
    [task] = await harness.tasks()
    discarded = (await harness.admin.DiscardTask(admin_pb2.DiscardTaskRequest(task_id=task.task_id))).task
    assert discarded.state == DISCARDED
    assert discarded.HasField("finish_time")
    sink.poison.clear()
    await harness.advance(60_000)
    await harness.restart(sink=sink)
    await harness.advance(60_000)
    assert sink.offered == []
    assert await harness.tasks() == []
    assert [task.state for task in await harness.tasks(DISCARDED)] == [DISCARDED]
    refused = await refusal(harness.admin.DiscardTask(admin_pb2.DiscardTaskRequest(task_id=task.task_id)))
    assert refused.reason == "TASK_FINISHED"


async def test_a_discard_takes_precedence_over_a_running_attempt(stopped_harness: ServerHarness) -> None:
    class Slow(FailingSink):
        async def deliver(self, key: ActivityKey, activity: Activity, lost: ActivityRescheduleTask) -> None:
            if key.activity_id in self.poison and self.offered == ["go"]:
                [shard] = [shard for shard in harness.server.node.shards() if key in shard.activities]
                # The updates of the operator and of the runner are in one commit.
                shard.update_task(TaskUpdate(task.task_id, TaskState.DISCARDED, 0, 1, ""))
            await super().deliver(key, activity, lost)

    sink = Slow("poison")
    harness = await stopped_harness.start(sink=sink)
    await lose(harness, "poison")
    await harness.advance(1)
    [task] = await harness.tasks()
    sink.offered.append("go")
    await harness.advance(2_000)
    assert await harness.tasks() == []
    assert [task.state for task in await harness.tasks(DISCARDED)] == [DISCARDED]


async def test_tasks_that_are_not_done_are_run_by_the_next_server(
    stopped_harness: ServerHarness,
) -> None:
    sink = FailingSink("poison", message="\0 and \ud800")
    harness = await stopped_harness.start(sink=sink)
    await lose(harness, "poison", "a")
    await harness.restart(sink=sink)
    await harness.advance(1)
    assert sink.offered == ["a"]
    assert [task.state for task in await harness.tasks()] == [RETRYING], (
        "an unstorable error text does no harm"
    )
    sink.poison.clear()
    await harness.advance(2_000)
    assert sink.offered == ["a", "poison"]


async def test_tasks_are_listed_by_namespace_and_state_in_pages(stopped_harness: ServerHarness) -> None:
    sink = FailingSink(*(f"p{number}" for number in range(5)))
    harness = await stopped_harness.start(sink=sink)
    await lose(harness, *(f"p{number}" for number in range(5)), "fine")
    await lose(harness, "p0", "fine", namespace="billing")
    await harness.advance(1)
    assert len(await harness.tasks()) == 6
    assert len(await harness.tasks(namespace="billing")) == 1
    assert len(await harness.tasks(DONE)) == 2
    assert len(await harness.tasks(DONE, RETRYING)) == 8
    assert await harness.tasks(PENDING, DEAD_LETTERED) == []
    seen: list[int] = []
    request = admin_pb2.ListTasksRequest(namespace=NAMESPACE, page_size=2)
    while True:
        page = await harness.admin.ListTasks(request)
        seen += [task.task_id for task in page.tasks]
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert len(seen) == len(set(seen)) == 5
    request = admin_pb2.ListTasksRequest(namespace=NAMESPACE, page_size=2)
    request.page_token = (await harness.admin.ListTasks(request)).next_page_token
    request.namespace = "billing"
    assert (await refusal(harness.admin.ListTasks(request))).reason == "PAGE_TOKEN_INVALID"


async def test_finished_tasks_are_deleted_after_their_retention(stopped_harness: ServerHarness) -> None:
    harness = await stopped_harness.start(task_retention_s=60.0)
    await lose(harness, "a")
    await harness.advance(1)
    harness.clock.move(61_000)
    await harness.server.maintenance.apply_retention()
    assert await harness.tasks(DONE) == []
    assert (await harness.describe()).state == INACTIVE
    assert (await harness.beat()).state == ACTIVE
