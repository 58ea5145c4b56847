"""The pages of activities and tasks: their state, and the actions on them."""

from __future__ import annotations

import base64
import re

import pytest
from playwright.async_api import expect

from tests.system.dashboard.screen import Screen
from tests.system.dashboard.server_and_workers import ApiClient, WebhookReceiver, activity


async def test_activities_are_listed_by_state_queue_and_worker(screen: Screen, api: ApiClient) -> None:
    api.beat("w", lease_duration="60s")
    api.schedule("taken")
    assert api.poll("w")
    api.schedule("free")
    api.schedule("other", task_queue="films")
    await screen.open("activities")
    await expect(screen.row("taken")).to_contain_text("started")
    await expect(screen.row("taken").get_by_role("link", name="w", exact=True)).to_be_visible()
    names = screen.page.locator("tbody tr td:first-child")
    await screen.page.get_by_role("button", name="available").click()
    await expect(names).to_have_text(["free / r1 / a1", "other / r1 / a1"])
    await screen.page.get_by_label("Task queue").fill("films")
    await screen.page.get_by_label("Task queue").press("Enter")
    await expect(names).to_have_text(["other / r1 / a1"])
    await screen.open("activities", worker="w")
    await expect(names).to_have_text(["taken / r1 / a1"])
    api.schedule("late")
    await screen.open("activities", queue="photos", state="available")
    await expect(names).to_have_text(["free / r1 / a1", "late / r1 / a1"])


async def test_many_activities_are_shown_in_pages(screen: Screen, api: ApiClient) -> None:
    for number in range(101):
        api.schedule(f"a-{number:03d}")
    await screen.open("activities")
    await expect(screen.row("a-099")).to_be_visible()
    await screen.button("Next").click()
    await expect(screen.row("a-100")).to_be_visible()
    await expect(screen.row("a-099")).to_have_count(0)
    await screen.button("Previous").click()
    await expect(screen.row("a-000")).to_be_visible()


async def test_the_rescue_of_a_temporal_attempt_links_to_its_workflow(screen: Screen, api: ApiClient) -> None:
    bound = {**activity("order 7"), "task_queue": "temporal-rescue"}
    labels = {"temporal-ui": "https://ui.example"}
    api.beat("w", lease_duration="60s", bound_activities=[bound], labels=labels)
    api.expire("w")
    await screen.open("activity", workflow="order 7", run="r1", activity="a1")
    await expect(screen.page.get_by_role("link", name="in Temporal")).to_have_attribute(
        "href", f"https://ui.example/namespaces/{api.namespace}/workflows/order%207/r1"
    )


async def test_an_activitys_page_updates_by_itself(screen: Screen, api: ApiClient) -> None:
    api.schedule("photo", input=base64.b64encode(b'{"file": "sea.jpg"}').decode())
    await screen.open("activity", workflow="photo", run="r1", activity="a1")
    facts = screen.page.locator(".facts")
    await expect(facts).to_contain_text("available")
    await expect(screen.page.locator("pre").first).to_contain_text('"file": "sea.jpg"')
    await expect(screen.page.get_by_text("No worker has held it yet.")).to_be_visible()
    api.beat("w", lease_duration="60s")
    assert api.poll("w")
    await expect(facts).to_contain_text("started")
    attempt = screen.page.locator("tbody tr")
    await expect(attempt).to_contain_text("running")
    await expect(attempt.get_by_role("link", name="w")).to_be_visible()
    await facts.get_by_role("link", name="w").click()
    await expect(screen.page.locator("h1")).to_have_text("w")


async def test_an_activity_can_be_cancelled(screen: Screen, api: ApiClient) -> None:
    api.schedule("photo")
    await screen.open("activities")
    await screen.row("photo").get_by_role("button", name="Cancel").click()
    await expect(screen.dialog).to_contain_text("It ends for good")
    await screen.confirm("Cancel it", reason="not needed")
    await screen.shows_message("Cancelled.")
    await expect(screen.row("photo")).to_contain_text("cancelled")
    await expect(screen.row("photo").get_by_role("button")).to_have_count(0)


async def test_a_quarantined_activity_can_be_started_again(screen: Screen, api: ApiClient) -> None:
    api.schedule("poison", retry_policy={"maximum_worker_deaths": 1})
    api.die_holding_work("w")
    await screen.open("activity", workflow="poison", run="r1", activity="a1")
    await expect(screen.page.locator(".facts")).to_contain_text("quarantined")
    await screen.button("Retry").click()
    await screen.confirm("Retry")
    await screen.shows_message("fresh start")
    await expect(screen.page.locator(".facts")).to_contain_text("available")


def lose(api: ApiClient, *workflows: str) -> None:
    """Let the worker of another engine's activities expire; each reschedule becomes a task."""
    bound = [{**activity(workflow), "task_queue": "elsewhere"} for workflow in workflows]
    api.beat("w", lease_duration="60s", bound_activities=bound)
    api.expire("w")


async def test_dead_letters_can_be_retried_and_discarded(
    screen: Screen, api: ApiClient, receiver: WebhookReceiver
) -> None:
    receiver.accepts = False
    lose(api, "photo-1", "photo-2")
    await screen.open("tasks", state="dead lettered")
    await expect(screen.row("photo-1")).to_contain_text("503")
    await expect(screen.row("photo-1").get_by_role("link", name="w", exact=True)).to_be_visible()
    receiver.accepts = True
    await screen.row("photo-1").get_by_role("button", name="Retry").click()
    await screen.confirm("Retry")
    await screen.shows_message(re.compile("The task is"))
    await expect(screen.row("photo-1")).to_have_count(0)
    await screen.row("photo-2").get_by_role("button", name="Discard").click()
    await expect(screen.dialog).to_contain_text("given up for good")
    await screen.confirm("Discard")
    await screen.shows_message("discarded")
    await expect(screen.page.get_by_text("No task matches.")).to_be_visible()
    await screen.open("tasks", state="done,discarded")
    await expect(screen.row("photo-1")).to_contain_text("done")
    await expect(screen.row("photo-2")).to_contain_text("discarded")


async def test_the_overview_shows_a_banner_for_dead_letters(
    screen: Screen, api: ApiClient, receiver: WebhookReceiver
) -> None:
    receiver.accepts = False
    lose(api, "photo-1")
    await screen.open("overview")
    banner = screen.page.locator(".alert").filter(has_text="failed too often")
    await expect(banner).to_be_visible()
    await expect(screen.page.locator(".queues li")).to_have_count(1)
    await banner.click()
    await expect(screen.row("photo-1")).to_contain_text("dead lettered")


@pytest.mark.phone
async def test_activities_are_shown_as_cards_on_a_phone(screen: Screen, api: ApiClient) -> None:
    api.schedule("photo", task_queue="photos")
    await screen.open("activities")
    await expect(screen.page.locator("tbody tr")).to_contain_text("available")
    await expect(screen.page.locator("thead")).to_be_hidden()
    assert not await screen.overflowing_elements()
