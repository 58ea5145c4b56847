"""ComponentService over HTTP: reports, orders, lists, history and output of supervised processes."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

from tests.integration.http.http_client import Client
from tests.integration.http.http_harness import HttpHarness
from tests.integration.server.component_client import CRASHED, ComponentClient, killed

PATH = "/v1/namespaces/orders"


async def test_a_supervisor_can_run_a_group_over_http(http_harness: HttpHarness, client: Client) -> None:
    http_harness.harness.lift_rate_limits()
    beat = {"session_id": "s", "lease_duration": "3600s", "only_if_free": True}
    await client.post(f"{PATH}/workers/supervisor:images/heartbeat", beat)
    await client.post(f"{PATH}/workers/worker:images:0/heartbeat", {**beat, "session_id": "p"})
    report = {
        "session_id": "p",
        "number": 1,
        "status": "STARTING",
        "time": "2026-01-01T00:00:00Z",
        "wanted": True,
    }
    component = f"{PATH}/components/{quote('worker:images:0', safe='')}"
    assert await client.post(f"{component}/report", report) == {"rescheduled_activities": 0}
    healthy = {**report, "number": 2, "status": "HEALTHY", "process_id": 17, "details_json": '{"rss": 5}'}
    await client.post(f"{component}/report", healthy)

    order = {"action": "SCALE", "count": 3, "reason": "more work"}
    given = await client.post(f"{PATH}/component-groups/images/order", order)
    assert given == {"order_number": "1", "supervised": True}
    poll = {"worker_instance_key": "supervisor:images", "session_id": "s", "wait": "0s"}
    brought = await client.post(f"{PATH}/component-orders/poll", poll)
    assert [(each["action"], each["count"]) for each in brought["orders"]] == [("COMPONENT_ACTION_SCALE", 3)]
    await client.post(f"{PATH}/component-orders/poll", {**poll, "done_through": 1})

    [group] = (await client.get(f"{PATH}/component-groups"))["groups"]
    assert (group["group"], group["supervised"], group["waiting_orders"]) == ("images", True, [])
    shown = (await client.get(component))["component"]
    assert (shown["status"], shown["process_id"]) == ("COMPONENT_STATUS_HEALTHY", 17)
    listed = await client.get(f"{PATH}/components?group=images&statuses=HEALTHY")
    assert listed["components"] == [shown]
    assert (await client.get(f"{PATH}/components?statuses=FAILED"))["components"] == []
    history = await client.get(f"{PATH}/worker/history?worker_instance_key=worker:images:0")
    changes = [event for event in history["events"] if event["type"] == "ComponentChanged"]
    assert ["STARTING" in event["data_json"] for event in changes] == [True, False]


async def test_output_is_asked_of_the_supervisor_over_http(http_harness: HttpHarness, client: Client) -> None:
    supervisor = ComponentClient.of(http_harness.harness)
    await supervisor.supervise()
    await supervisor.start()
    polling = asyncio.create_task(supervisor.poll(wait_ms=60_000))
    asking = asyncio.create_task(client.get(f"{PATH}/components/worker:images:0/logs?lines=2"))
    [request] = (await polling).log_requests
    assert (request.component_id, request.lines) == ("worker:images:0", 2)
    answer = {
        "worker_instance_key": supervisor.key,
        "session_id": supervisor.session_id,
        "request_id": request.request_id,
        "lines": ["one", "two"],
        "next": "12",
    }
    await client.post(f"{PATH}/component-logs/send", answer)
    assert await asking == {"lines": ["one", "two"], "next": "12"}


async def test_a_crashed_component_says_how_it_ended(http_harness: HttpHarness, client: Client) -> None:
    supervisor = ComponentClient.of(http_harness.harness)
    await supervisor.supervise()
    await supervisor.start()
    await supervisor.report(CRASHED, last_exit=killed(5_000, "the last words"))
    shown = (await client.get(f"{PATH}/components/worker:images:0"))["component"]
    assert (shown["last_exit"]["signal"], shown["last_exit"]["last_lines"]) == ("SIGKILL", ["the last words"])


async def test_what_does_not_exist_is_refused_with_404(http_harness: HttpHarness, client: Client) -> None:
    await http_harness.harness.beat("worker:plain:0")
    for verb, target, body, reason in (
        ("GET", "components/worker:images:0", None, "COMPONENT_NOT_FOUND"),
        ("GET", "components/worker:plain:0", None, "COMPONENT_NOT_FOUND"),
        ("GET", "components/worker:images:0/logs", None, "COMPONENT_GROUP_NOT_FOUND"),
        ("POST", "component-groups/images/order", {"action": "STOP"}, "COMPONENT_GROUP_NOT_FOUND"),
    ):
        code, found, _ = await client.refused(verb, f"{PATH}/{target}", body)
        assert (code, found) == (404, reason), target


async def test_orders_with_a_wrong_field_change_nothing(http_harness: HttpHarness, client: Client) -> None:
    supervisor = ComponentClient.of(http_harness.harness)
    await supervisor.supervise()
    target = f"{PATH}/component-groups/images/order"
    for body, part in (
        ({}, "action"),
        ({"action": "EXPLODE"}, "EXPLODE"),
        ({"action": "STOP", "count": 2}, "count must be unset unless the action is SCALE"),
        ({"action": "SCALE", "count": -1}, "count must be 0 to 10000"),
        ({"action": "SCALE", "count": 2, "component_ids": ["worker:images:0"]}, "for the whole group"),
        ({"action": "STOP", "component_ids": ["worker:other:0"]}, "component_ids"),
        ({"action": "STOP", "group": "another"}, "group"),
        ({"action": "STOP", "grup": "images"}, "There is no field grup"),
    ):
        code, _, message = await client.refused("POST", target, body)
        assert code == 400, body
        assert part in message
    [group] = await supervisor.groups()
    assert group.last_order_number == 0
