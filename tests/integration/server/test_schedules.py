"""Schedules over gRPC: each tick fires once, whatever happens to the server, the clock and the store."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from liveness.v1 import activity_pb2
from liveness.v1 import schedule_service_pb2 as pb
from liveness.v1.activity_pb2_grpc import ActivityServiceStub
from liveness.v1.schedule_service_pb2_grpc import ScheduleServiceStub
from liveness.v1.service_pb2 import ListRecentEventsRequest
from tests.integration.server.server_harness import NAMESPACE, ServerHarness, refusal
from tests.integration.store.faulty_store import Fault

SECOND = 1_000
MINUTE = 60 * SECOND


def spec(**fields: Any) -> pb.ScheduleSpec:
    activity = pb.ScheduledActivity(activity_type="report", task_queue="night", input=b'{"a": 1}')
    if "cron" not in fields and "every" not in fields:
        fields["every"] = Duration(seconds=60)
    return pb.ScheduleSpec(activity=activity, **fields)


class ScheduleClient:
    def __init__(self, harness: ServerHarness) -> None:
        self.harness = harness

    @property
    def stub(self) -> Any:
        return ScheduleServiceStub(self.harness.channel)

    async def create(self, name: str = "s", **fields: Any) -> pb.CreateScheduleResponse:
        answer: pb.CreateScheduleResponse = await self.stub.CreateSchedule(
            pb.CreateScheduleRequest(namespace=NAMESPACE, schedule_id=name, spec=spec(**fields))
        )
        return answer

    async def update(self, name: str = "s", **fields: Any) -> pb.Schedule:
        answer = await self.stub.UpdateSchedule(
            pb.UpdateScheduleRequest(namespace=NAMESPACE, schedule_id=name, spec=spec(**fields))
        )
        found: pb.Schedule = answer.schedule
        return found

    async def get(self, name: str = "s") -> pb.Schedule:
        answer = await self.stub.GetSchedule(pb.GetScheduleRequest(namespace=NAMESPACE, schedule_id=name))
        found: pb.Schedule = answer.schedule
        return found

    async def pause(self, name: str = "s") -> bool:
        request = pb.PauseScheduleRequest(namespace=NAMESPACE, schedule_id=name, reason="why")
        return bool((await self.stub.PauseSchedule(request)).changed)

    async def resume(self, name: str = "s") -> pb.ResumeScheduleResponse:
        answer: pb.ResumeScheduleResponse = await self.stub.ResumeSchedule(
            pb.ResumeScheduleRequest(namespace=NAMESPACE, schedule_id=name)
        )
        return answer

    async def trigger(self, name: str = "s", trigger_id: str = "") -> pb.TriggerScheduleResponse:
        answer: pb.TriggerScheduleResponse = await self.stub.TriggerSchedule(
            pb.TriggerScheduleRequest(namespace=NAMESPACE, schedule_id=name, trigger_id=trigger_id)
        )
        return answer

    async def delete(self, name: str = "s") -> None:
        await self.stub.DeleteSchedule(pb.DeleteScheduleRequest(namespace=NAMESPACE, schedule_id=name))

    async def activities(self) -> list[activity_pb2.Activity]:
        answer = await ActivityServiceStub(self.harness.channel).ListActivities(
            activity_pb2.ListActivitiesRequest(namespace=NAMESPACE)
        )
        return list(answer.activities)

    async def ticks(self) -> list[str]:
        return [activity.id.activity_id for activity in await self.activities()]

    def tick_names(self, *offsets_ms: int) -> list[str]:
        """The next multiples of a minute, and so on."""
        base_ms = self.harness.clock.wall_ms() // MINUTE * MINUTE
        return [
            datetime.fromtimestamp((base_ms + offset_ms) / 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            for offset_ms in offsets_ms
        ]


@pytest.fixture
def client(harness: ServerHarness) -> ScheduleClient:
    return ScheduleClient(harness)


async def test_a_schedule_fires_at_its_ticks_and_each_firing_is_an_activity(
    harness: ServerHarness, client: ScheduleClient
) -> None:
    expected = client.tick_names(MINUTE, 2 * MINUTE, 3 * MINUTE)
    created = await client.create(note="für Menschen")
    assert created.created
    assert not (await client.create(note="für Menschen")).created
    assert created.schedule.next_time.ToDatetime(tzinfo=UTC).strftime("%Y-%m-%dT%H:%M:%SZ") == expected[0]
    assert len(created.schedule.next_times) == 5
    await harness.advance(3 * MINUTE)
    found = await client.activities()
    assert [activity.id.activity_id for activity in found] == expected
    assert {(activity.id.workflow_id, activity.activity_type, activity.task_queue) for activity in found} == {
        ("schedule:s", "report", "night")
    }
    schedule = await client.get()
    assert (schedule.fired, schedule.missed, schedule.overlapped) == (3, 0, 0)
    assert [firing.id.activity_id for firing in schedule.firings] == expected[::-1]
    assert schedule.spec.activity.input == b'{"a": 1}'
    assert schedule.spec.note == "für Menschen"


async def test_a_schedule_with_the_same_name_and_another_content_is_refused(client: ScheduleClient) -> None:
    await client.create()
    why = await refusal(client.create(every=Duration(seconds=61)))
    assert (why.code, why.reason) == (grpc.StatusCode.ALREADY_EXISTS, "SCHEDULE_EXISTS")
    assert (await refusal(client.get("other"))).reason == "SCHEDULE_NOT_FOUND"


@pytest.mark.parametrize(
    ("policy", "fires"),
    [(pb.MISSED_POLICY_SKIP, ()), (pb.MISSED_POLICY_ONCE, (5,)), (pb.MISSED_POLICY_ALL, (1, 2, 3, 4, 5))],
)
async def test_ticks_while_no_server_ran_are_treated_by_the_policy(
    harness: ServerHarness, client: ScheduleClient, policy: int, fires: tuple[int, ...]
) -> None:
    expected = client.tick_names(*(number * MINUTE for number in fires))
    await client.create(missed=policy, start_window=Duration(seconds=10))
    await harness.stop()
    harness.clock.move(5 * MINUTE + 10 * SECOND)
    await harness.restart()
    await harness.advance(SECOND)
    assert await client.ticks() == expected
    schedule = await client.get()
    assert (schedule.fired, schedule.missed) == (len(fires), 5 - len(fires))


async def test_a_firing_whose_commit_is_lost_happens_once_all_the_same(
    stopped_harness: ServerHarness,
) -> None:
    harness = await stopped_harness.start(faulty=True)
    client = ScheduleClient(harness)
    expected = client.tick_names(MINUTE, 2 * MINUTE)
    # A shard that is read again may take longer than this clock takes for a minute.
    await client.create(missed=pb.MISSED_POLICY_ALL)
    assert harness.store is not None
    for fault in (Fault.UNKNOWN_DONE, Fault.REJECTED):
        harness.store.faults.append(fault)
        await harness.advance(MINUTE)
    await harness.advance(2 * SECOND)
    await harness.restart()
    await harness.advance(SECOND)
    assert await client.ticks() == expected
    assert (await client.get()).fired == 2


async def test_an_overlapping_tick_is_dropped_if_the_schedule_says_so(
    harness: ServerHarness, client: ScheduleClient
) -> None:
    expected = client.tick_names(MINUTE)
    await client.create(overlap=pb.OVERLAP_POLICY_SKIP)
    await harness.advance(3 * MINUTE)
    assert await client.ticks() == expected
    assert (await client.get()).overlapped == 2
    [activity] = await client.activities()
    await ActivityServiceStub(harness.channel).CancelActivity(
        activity_pb2.CancelActivityRequest(namespace=NAMESPACE, id=activity.id)
    )
    await harness.advance(MINUTE)
    assert len(await client.ticks()) == 2


async def test_pause_resume_trigger_and_delete(harness: ServerHarness, client: ScheduleClient) -> None:
    await client.create()
    assert await client.pause()
    assert not await client.pause()
    await harness.advance(2 * MINUTE)
    assert await client.ticks() == []
    assert not (await client.get()).HasField("next_time")
    first = await client.trigger(trigger_id="a")
    again = await client.trigger(trigger_id="a")
    assert first.created
    assert not again.created
    assert first.id == again.id
    assert (await client.trigger()).created
    resumed = await client.resume()
    assert resumed.changed
    assert resumed.next_time.ToMilliseconds() > harness.clock.wall_ms()
    await harness.advance(MINUTE)
    schedule = await client.get()
    assert (schedule.fired, schedule.missed) == (3, 0)
    await client.delete()
    await harness.advance(2 * MINUTE)
    assert len(await client.ticks()) == 3
    assert (await client.create()).created, "the name is free"
    events = await harness.liveness.ListRecentEvents(ListRecentEventsRequest(namespace=NAMESPACE))
    assert {"ScheduleSaved", "SchedulePaused", "ScheduleResumed", "ScheduleFired", "ScheduleDeleted"} <= {
        event.type for event in events.events
    }


async def test_an_update_never_fires_a_tick_again(harness: ServerHarness, client: ScheduleClient) -> None:
    """The wall clock is set back and the schedule updated: its next tick has been fired before, and its activity is over."""
    await client.create()
    await harness.advance(MINUTE)
    [activity] = await client.activities()
    await ActivityServiceStub(harness.channel).CancelActivity(
        activity_pb2.CancelActivityRequest(namespace=NAMESPACE, id=activity.id)
    )
    await harness.restart()  # so that the activity has left memory
    harness.clock.jump_wall(-MINUTE)
    await client.update(note="again")
    await harness.advance(MINUTE)
    [after] = await client.activities()
    assert after.state == activity_pb2.ACTIVITY_STATE_CANCELLED


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"cron": "* * * *"}, "spec.cron"),
        ({"cron": "61 * * * *"}, "spec.cron"),
        ({"cron": "* * 30 2 *"}, "spec.cron"),
        ({"cron": "@daily", "time_zone": "Mars/Base"}, "spec.time_zone"),
        ({"cron": "@daily", "time_zone": "../../etc/passwd"}, "spec.time_zone"),
        ({"cron": "@daily", "every": Duration(seconds=5)}, "spec.cron"),
        ({"every": Duration(nanos=1_000_000)}, "spec.every"),
        ({"every": Duration(seconds=5), "offset": Duration(seconds=5)}, "spec.offset"),
        ({"missed": 17}, "spec.missed"),
    ],
)
async def test_a_schedule_that_makes_no_sense_is_refused(
    client: ScheduleClient, fields: dict[str, Any], field: str
) -> None:
    why = await refusal(client.create(**fields))
    assert why.code is grpc.StatusCode.INVALID_ARGUMENT
    assert why.message.startswith(field)


async def test_a_namespace_has_a_limited_number_of_schedules(
    harness: ServerHarness, client: ScheduleClient
) -> None:
    await harness.configure(max_schedules=2)
    await client.create("a")
    await client.create("b")
    assert (await refusal(client.create("c"))).reason == "SCHEDULE_QUOTA_EXCEEDED"
    assert not (await client.create("b")).created
    await client.delete("a")
    assert (await client.create("c")).created


async def test_schedules_are_listed_by_pages(client: ScheduleClient) -> None:
    for name in ("b-1", "a", "b-2"):
        await client.create(name)
    request = pb.ListSchedulesRequest(namespace=NAMESPACE, page_size=2)
    page = await client.stub.ListSchedules(request)
    assert [schedule.schedule_id for schedule in page.schedules] == ["a", "b-1"]
    request.page_token = page.next_page_token
    page = await client.stub.ListSchedules(request)
    assert [schedule.schedule_id for schedule in page.schedules] == ["b-2"]
    assert not page.next_page_token
    page = await client.stub.ListSchedules(pb.ListSchedulesRequest(namespace=NAMESPACE, prefix="b-"))
    assert [schedule.schedule_id for schedule in page.schedules] == ["b-1", "b-2"]
    assert {schedule.spec.activity.input for schedule in page.schedules} == {b""}


async def test_a_full_activity_quota_delays_a_firing_and_then_it_was_missed(
    harness: ServerHarness, client: ScheduleClient
) -> None:
    await client.create(missed=pb.MISSED_POLICY_SKIP, start_window=Duration(seconds=10))
    await harness.configure(max_open_activities=1)
    await client.trigger()
    await harness.advance(MINUTE)
    assert (await client.get()).fired == 1
    await harness.advance(11 * SECOND)
    schedule = await client.get()
    assert (schedule.fired, schedule.missed) == (1, 1)
