"""Hostile texts from workers are shown as text and have no effect."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from playwright.async_api import expect

from tests.system.dashboard.screen import Screen
from tests.system.dashboard.server_and_workers import ApiClient

IMAGE = "<img src=x onerror=window.hacked=1>"
SCRIPT = "</script><script>window.hacked=1</script>"
RIGHT_TO_LEFT = "\u202egnp.exe\u2066\u200f تجربة"
LONG = "🦊" * 63 + "xyz"  # 255 bytes
TEMPLATE = "${window.hacked=1}{{7*7}}`"
PATHS = "../../v1?a=b&c#d/%2e%2e/%00"
DOTS = ".."
STRANGE = [IMAGE, SCRIPT, RIGHT_TO_LEFT, LONG, TEMPLATE, PATHS, DOTS, "__proto__", "constructor"]


def profile(text: str) -> dict[str, Any]:
    return {"host_name": text, "build_id": text, "task_queue": text, "last_error": text, "current_job": text,
            "worker_identity": text}  # fmt: skip


async def assert_page_unharmed(screen: Screen) -> None:
    assert await screen.page.evaluate("window.hacked") is None
    assert await screen.page.locator("main img, main script, main iframe").count() == 0
    assert not await screen.overflowing_elements()


async def test_hostile_workers_have_no_effect_in_the_table_and_on_their_pages(
    screen: Screen, api: ApiClient
) -> None:
    for text in STRANGE:
        api.beat(text, lease_duration="60s", session_id=text, **profile(text))
    await screen.open("workers")
    keys = screen.page.locator(".grid-row .col-key")
    await expect(keys).to_have_count(len(STRANGE))
    shown = await keys.all_text_contents()
    assert sorted(shown) == sorted(STRANGE)
    heights = await screen.page.evaluate(
        "[...document.querySelectorAll('.grid-row')].map((row) => row.getBoundingClientRect().height)"
    )
    assert set(heights) == {40}
    await assert_page_unharmed(screen)
    await screen.page.get_by_label("Filter workers").fill("<img src=x")
    await expect(keys).to_have_text([IMAGE])
    for text in STRANGE:
        await screen.open("worker", key=text)
        await expect(screen.page.locator("h1")).to_have_text(text, use_inner_text=False)
        await expect(screen.page.locator(".event").first).to_be_visible()
        await assert_page_unharmed(screen)


async def test_a_right_to_left_name_does_not_turn_the_text_around_it(screen: Screen, api: ApiClient) -> None:
    api.beat(RIGHT_TO_LEFT, lease_duration="60s", build_id="b-17", host_name="atlas")
    await screen.open("workers")
    row = screen.page.locator(".grid-row")
    await expect(row).to_contain_text("b-17")
    # The columns stay in place: the cell after the name is to its right.
    key, build = await row.locator(".col-key").bounding_box(), await row.locator(".col-build").bounding_box()
    assert key is not None
    assert build is not None
    assert key["x"] + key["width"] <= build["x"]
    assert await screen.page.evaluate("document.querySelector('.col-key bdi') !== null")


async def test_actions_work_on_a_worker_with_a_hostile_name(screen: Screen, api: ApiClient) -> None:
    for text in (PATHS, DOTS, IMAGE):
        api.beat(text, lease_duration="60s")
        await screen.open("worker", key=text)
        await screen.button("Expire").click()
        await expect(screen.dialog).to_contain_text(text)
        await screen.confirm("Expire", reason=SCRIPT)
        await screen.shows_message("Expired")
        worker = api.worker(text)
        assert worker["state"] == "WORKER_STATE_INACTIVE"
        assert worker["inactive_detail"] == SCRIPT
    await assert_page_unharmed(screen)


async def test_hostile_activities_have_no_effect(screen: Screen, api: ApiClient) -> None:
    for text in STRANGE:
        id = {"workflow_id": text, "run_id": text, "activity_id": text}
        payload = base64.b64encode(json.dumps(text).encode()).decode()
        api.post("activities", {"id": id, "activity_type": text, "task_queue": text, "input": payload})
    await screen.open("activities")
    await expect(screen.page.locator("tbody tr")).to_have_count(len(STRANGE))
    await assert_page_unharmed(screen)
    for text in (IMAGE, PATHS, DOTS, LONG):
        await screen.open("activity", workflow=text, run=text, activity=text)
        await expect(screen.page.locator(".facts")).to_contain_text(text)
        await expect(screen.page.locator("pre").first).to_contain_text(json.dumps(text, ensure_ascii=False))
        await assert_page_unharmed(screen)


@pytest.mark.phone
async def test_hostile_events_have_no_effect_on_a_phone(screen: Screen, api: ApiClient) -> None:
    api.beat("w", lease_duration="60s")
    await screen.open("events")
    for text in STRANGE:
        api.beat(text, lease_duration="60s", session_id=text)
        api.post("workers/pause", {"worker_instance_key": text, "reason": text})
    await expect(screen.page.locator(".event")).to_have_count(1 + 2 * len(STRANGE))
    await assert_page_unharmed(screen)
