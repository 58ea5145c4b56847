"""The worker paths of Nomarr: what they answer from real components, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from liveness.http import worker_paths
from liveness.v1 import component_pb2
from tests.integration.http.http_client import JSON, Client
from tests.integration.http.http_harness import HttpHarness
from tests.integration.server.component_client import CRASHED, PAUSED, ComponentClient, timestamp

STATUS, RESTART, INFO = "/api/web/worker/status", "/api/web/worker/restart", "/api/v1/info"
NEVER_RESTARTED: dict[str, Any] = {"restart_count": 0, "last_restart": None}


@pytest.fixture
async def supervisor(http_harness: HttpHarness) -> ComponentClient:
    supervisor = ComponentClient.of(http_harness.harness, namespace="default")
    await supervisor.supervise()
    return supervisor


async def orders(supervisor: ComponentClient) -> list[tuple[str, tuple[str, ...]]]:
    [group] = [group for group in await supervisor.groups() if group.group == supervisor.group]
    return [
        (
            component_pb2.ComponentAction.Name(order.action)[len("COMPONENT_ACTION_") :],
            tuple(order.component_ids),
        )
        for order in group.waiting_orders
    ]


async def test_the_status_is_one_row_for_each_component(
    http_harness: HttpHarness, client: Client, supervisor: ComponentClient
) -> None:
    now_ms = http_harness.harness.clock.wall_ms()
    await supervisor.start(0, current_job="67890")
    await supervisor.start(1, session_id="p2")
    restarts = {"restart_count": 3, "restart_times": [timestamp(now_ms - 9_999)]}
    await supervisor.report(CRASHED, 1, "p2", details_json='{"files_processed": 7}', **restarts)
    first, second = await client.get(STATUS)
    assert first == {
        "component": "worker:images:0", "status": "healthy", "pid": 100, "current_job": "67890",
        "last_seen": now_ms // 1_000, "created_at": now_ms // 1_000, "paused": False, "details": {}, **NEVER_RESTARTED,
    }  # fmt: skip
    assert (second["status"], second["pid"], second["restart_count"]) == ("crashed", None, 3)
    assert second["last_restart"] == (now_ms - 9_999) // 1_000
    assert second["details"] == {"files_processed": 7}
    assert [row["component"] for row in await client.get(f"{STATUS}?statuses=CRASHED")] == ["worker:images:1"]
    assert await client.get(f"{STATUS}?namespace=orders") == []


async def test_a_long_list_goes_on_where_the_header_link_says(
    client: Client, supervisor: ComponentClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_paths, "PAGE_ROWS", 2)
    for index in range(5):
        await supervisor.start(index, session_id=f"p{index}")
    assert [row["component"][-1] for row in await client.get(STATUS)] == list("01234")
    answer = await client.ask("GET", f"{STATUS}?group=images&page_size=3")
    assert [row["component"][-1] for row in answer.json()] == list("012")
    link = answer.headers["link"]
    assert link.endswith('>; rel="next"')
    rest = await client.ask("GET", link[1:].partition(">")[0])
    assert [row["component"][-1] for row in rest.json()] == list("34")
    assert "link" not in rest.headers


async def test_info_tells_whether_workers_run_and_take_jobs(
    http_harness: HttpHarness, client: Client, supervisor: ComponentClient
) -> None:
    nothing = await client.get(INFO)
    assert nothing["config"] == {"namespace": "default", "worker_enabled": True, "worker_count": 0}
    assert nothing["worker"] == {"enabled": True, "alive": False, "last_heartbeat": None, "statuses": {}}
    await supervisor.start(0)
    await supervisor.start(1, session_id="p2")
    await supervisor.report(PAUSED, 0, paused=True)
    running = await client.get(INFO)
    assert running["config"]["worker_enabled"] is True, "one takes jobs"
    assert running["worker"]["last_heartbeat"] == http_harness.harness.clock.wall_ms() / 1_000
    await supervisor.report(CRASHED, 1, "p2", paused=True)
    paused = await client.get(INFO)
    assert (paused["config"]["worker_enabled"], paused["worker"]["alive"]) == (False, True)
    assert paused["worker"]["statuses"] == {"crashed": 1, "paused": 1}
    assert (await client.get(f"{INFO}?namespace=orders"))["config"]["worker_count"] == 0


async def test_a_restart_without_a_body_restarts_all_groups_and_forgets_restarts(
    http_harness: HttpHarness, client: Client, supervisor: ComponentClient
) -> None:
    """As `curl -X POST` sends it, without any header about a body."""
    other = ComponentClient.of(http_harness.harness, "mail", "default")
    await other.supervise()
    async with client.connect() as connection:
        connection.writer.write(f"POST {RESTART} HTTP/1.1\r\nHost: {connection.host}\r\n\r\n".encode())
        answer = await connection.answer()
    assert answer.code == 200, answer
    shown = answer.json()
    assert (shown["status"], shown["message"]) == ("success", "2 groups are told to restart.")
    assert [(each["group"], each["order_number"]) for each in shown["orders"]] == [
        ("images", "2"),
        ("mail", "2"),
    ]
    for each in (supervisor, other):
        assert await orders(each) == [("RESTART", ()), ("RESET", ())]


async def test_a_restart_can_name_a_group_and_its_components(
    client: Client, supervisor: ComponentClient
) -> None:
    body = {
        "group": "images",
        "component_ids": ["worker:images:0"],
        "action": "ROLLING_RESTART",
        "reason": "new build",
    }
    assert (await client.post(RESTART, body))["message"] == "1 group is told to restart."
    chosen = ("worker:images:0",)
    assert await orders(supervisor) == [("ROLLING_RESTART", chosen), ("RESET", chosen)]


async def test_a_restart_without_a_supervisor_says_that_the_next_one_does_it(
    http_harness: HttpHarness, client: Client, supervisor: ComponentClient
) -> None:
    await http_harness.harness.shut_down(supervisor.key, namespace="default")
    answer = await client.post(RESTART, {})
    assert answer["message"].endswith("No supervisor runs images now; the next one will do it.")
    assert answer["orders"][0]["supervised"] is False


@pytest.mark.parametrize(
    ("verb", "target", "body", "code", "reason", "part"),
    [
        ("GET", f"{STATUS}?namspace=x", None, 400, "UNKNOWN_PARAMETER", "namspace"),
        ("GET", f"{STATUS}?statuses=SICK", None, 400, "INVALID_FIELD", "SICK"),
        ("GET", f"{STATUS}?page_size=-1", None, 400, "INVALID_FIELD", "page_size must be"),
        ("GET", f"{STATUS}?page_size=1001", None, 400, "INVALID_FIELD", "page_size must be"),
        ("GET", f"{STATUS}?page_token=x", None, 400, "PAGE_TOKEN_INVALID", ""),
        ("GET", f"{STATUS}?group=-", None, 400, "INVALID_FIELD", "group"),
        ("GET", f"{STATUS}?namespace=%ff", None, 400, "INVALID_FIELD", "UTF-8"),
        ("GET", f"{INFO}?page_size=1", None, 400, "UNKNOWN_PARAMETER", "page_size"),
        ("POST", STATUS, {}, 405, "METHOD_NOT_ALLOWED", "GET"),
        ("GET", RESTART, None, 405, "METHOD_NOT_ALLOWED", "POST"),
        ("POST", f"{RESTART}?group=images", {}, 400, "UNKNOWN_PARAMETER", "group"),
        ("POST", RESTART, [], 400, "UNFIT_BODY", "object"),
        ("POST", RESTART, {"grup": "images"}, 400, "UNKNOWN_FIELD", "grup"),
        ("POST", RESTART, {"action": "STOP"}, 400, "INVALID_FIELD", "RESTART or ROLLING_RESTART"),
        ("POST", RESTART, {"group": "images", "count": 3}, 400, "INVALID_FIELD", "count"),
        ("POST", RESTART, {"component_ids": ["worker:images:0"]}, 400, "INVALID_FIELD", "group must be"),
        (
            "POST",
            RESTART,
            {"group": "images", "component_ids": ["worker:mail:0"]},
            400,
            "INVALID_FIELD",
            "component_ids",
        ),
        ("POST", RESTART, {"group": "mail"}, 404, "COMPONENT_GROUP_NOT_FOUND", "mail"),
        ("POST", RESTART, {"namespace": "orders"}, 404, "COMPONENT_GROUP_NOT_FOUND", "namespace orders"),
        ("POST", RESTART, {"group": "x" * 70_000}, 413, "BODY_TOO_LARGE", "64 KiB"),
    ],
)
async def test_bad_input_gets_one_sentence_and_changes_nothing(
    client: Client,
    supervisor: ComponentClient,
    verb: str,
    target: str,
    body: Any,
    code: int,
    reason: str,
    part: str,
) -> None:
    found_code, found_reason, message = await client.refused(verb, target, body)
    assert (found_code, found_reason) == (code, reason)
    assert part in message
    assert await orders(supervisor) == []


@pytest.mark.parametrize(
    ("headers", "body", "code"),
    [
        ({"Content-Type": "text/plain"}, b"", 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, b"", 415),
        ({}, b"{}", 415),
        ({**JSON, "Origin": "https://evil.example"}, b"{}", 403),
        ({"Origin": "https://evil.example"}, b"", 403),
        ({"Origin": "null"}, b"", 403),
        ({"Sec-Fetch-Site": "cross-site"}, b"", 403),
    ],
)
async def test_no_web_page_can_restart(
    client: Client, supervisor: ComponentClient, headers: dict[str, str], body: bytes, code: int
) -> None:
    assert (await client.ask("POST", RESTART, headers, body)).code == code
    own = {"Origin": f"http://127.0.0.1:{client.port}"}
    assert (await client.ask("POST", RESTART, own)).code == 415, "pages name the type of their content"
    assert await orders(supervisor) == []


async def test_more_groups_than_one_restart_takes_are_refused(
    http_harness: HttpHarness, client: Client, supervisor: ComponentClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = ComponentClient.of(http_harness.harness, "mail", "default")
    await other.supervise()
    monkeypatch.setattr(worker_paths, "GROUPS_MAX", 1)
    code, _, message = await client.refused("POST", RESTART, {})
    assert code == 400
    assert message == "group must be set, because namespace default has more than 1 groups."
    assert await orders(supervisor) == await orders(other) == []
