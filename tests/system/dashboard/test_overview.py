"""The overview of the fleet."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Locator, expect

from tests.system.dashboard.screen import Screen
from tests.system.dashboard.server_and_workers import ApiClient, ServerProcess, activity


def tile(screen: Screen, label: str) -> Locator:
    return screen.page.locator(".tile").filter(has=screen.page.get_by_text(label, exact=True))


async def test_tiles_and_charts_show_the_state_of_the_fleet(screen: Screen, api: ApiClient) -> None:
    await screen.open("overview", range="5")
    api.beats([{"worker_instance_key": f"w-{number}", "lease_duration": "60s"} for number in range(12)])
    api.expire("w-3")
    await expect(tile(screen, "Active").locator(".tile-value")).to_have_text("11")
    await expect(tile(screen, "Inactive").locator(".tile-value")).to_have_text("1")
    await expect(tile(screen, "Shards").locator(".tile-value")).to_have_text("16/16")
    await expect(tile(screen, "Database").locator(".tile-value")).to_contain_text("iB")
    await expect(screen.page.locator(".chart canvas")).to_have_count(5)
    states = screen.page.locator(".chart").filter(has_text="Workers by state")
    await expect(states.get_by_role("button", name="active 11", exact=True)).to_be_visible()
    await screen.until("[...document.querySelectorAll('.chart canvas')].every((one) => one.width > 200)")
    # Heartbeats draw a line: the canvas is not empty.
    await screen.until(
        "document.querySelector('.chart canvas').getContext('2d').getImageData(0, 0, 800, 200).data.some((value) => value > 0)"
    )
    legend = states.get_by_role("button", name=re.compile("^inactive"))
    await legend.click()
    await expect(legend).to_have_attribute("aria-pressed", "false")


async def test_the_address_holds_the_time_range(screen: Screen, api: ApiClient) -> None:
    api.beat("w")
    await screen.open("overview")
    await screen.button("30 min").click()
    await expect(screen.page).to_have_url(re.compile("range=30"))
    await expect(screen.button("30 min")).to_have_attribute("aria-pressed", "true")
    await expect(tile(screen, "Expiries")).to_contain_text("in 30 min")


async def test_a_storm_shows_a_banner_that_links_to_the_dead_workers(screen: Screen, api: ApiClient) -> None:
    api.beats([{"worker_instance_key": f"w-{number}", "lease_duration": "1s"} for number in range(24)])
    await screen.open("overview")
    banner = screen.page.locator(".alert").filter(has_text="died within 60 s")
    await expect(banner).to_contain_text("24 workers")
    await expect(tile(screen, "Expiries").locator(".tile-value")).to_have_text("24")
    await banner.click()
    await expect(screen.page.locator(".grid-row")).not_to_have_count(0)
    await expect(screen.page.get_by_role("button", name="inactive 24")).to_have_attribute(
        "aria-pressed", "true"
    )


async def test_leases_held_by_a_storm_show_a_banner_and_can_be_released(
    screen: Screen, api: ApiClient
) -> None:
    api.beats([{"worker_instance_key": f"w-{number}", "lease_duration": "12s"} for number in range(24)])
    await screen.open("overview")
    banner = screen.page.locator(".alert").filter(has_text="24 workers")
    await expect(banner).to_contain_text("their leases are held, until", timeout=30_000)
    await expect(screen.row(api.namespace)).to_contain_text("(24 held)")
    await banner.get_by_role("button", name="Release").click()
    await expect(screen.dialog).to_contain_text("24 workers fell silent together")
    await screen.confirm("Release", reason="we know why")
    await screen.shows_message(re.compile("Released: 24 workers"))
    await expect(banner.first).to_contain_text("died within 60 s")


async def test_a_dead_fleet_shows_a_banner_and_a_red_zero(screen: Screen, api: ApiClient) -> None:
    api.beats([{"worker_instance_key": f"w-{number}", "lease_duration": "1s"} for number in range(4)])
    await screen.open("overview")
    banner = screen.page.locator(".alert").filter(has_text="4 workers")
    await expect(banner).to_contain_text("died and none is active")
    active = tile(screen, "Active")
    await expect(active.locator(".tile-value")).to_have_text("0")
    await expect(active.locator(".tile-value")).to_have_class(re.compile(r"\bbad\b"))
    await expect(active).to_contain_text("4 died")
    await expect(screen.row(api.namespace).locator("td.num").first.locator(".bad")).to_have_text("0")
    api.beat("w-new", lease_duration="60s")
    await expect(banner).to_have_count(0)
    await expect(active.locator(".tile-value")).to_have_class(re.compile(r"\bgood\b"))


async def test_workers_that_left_in_order_leave_a_plain_zero(screen: Screen, api: ApiClient) -> None:
    api.beat("w", lease_duration="60s")
    api.post("worker/shutdown", {"worker_instance_key": "w"})
    await screen.open("overview")
    await expect(tile(screen, "Inactive").locator(".tile-value")).to_have_text("1")
    await expect(tile(screen, "Active").locator(".tile-value")).to_have_class(re.compile(r"\bmute\b"))
    await expect(screen.page.locator(".alert").filter(has_text="none is active")).to_have_count(0)


async def test_work_that_nobody_polls_for_shows_a_banner_and_a_red_number(
    screen: Screen, api: ApiClient
) -> None:
    api.configure(unpolled_alert="1s")
    api.beat("w", lease_duration="600s")
    for number in range(3):
        api.schedule(f"album-{number}")
    await screen.open("overview")
    banner = screen.page.locator(".alert").filter(has_text="3 activities")
    await expect(banner).to_contain_text("where no worker polls: task queue photos; the oldest for")
    waiting = tile(screen, "Waiting")
    await expect(waiting.locator(".tile-value")).to_have_text("3")
    await expect(waiting.locator(".tile-value")).to_have_class(re.compile(r"\bbad\b"))
    row = screen.row("photos")
    await expect(row).to_contain_text("nobody polls")
    await banner.get_by_role("link").click()
    await expect(screen.row("album-")).to_have_count(3)


async def test_the_number_of_tasks_counts_what_its_bars_count(screen: Screen, api: ApiClient) -> None:
    bound = [{**activity(f"a{number}"), "task_queue": "elsewhere"} for number in range(3)]
    api.beat("w", lease_duration="1s", bound_activities=bound)
    await screen.open("overview")
    tasks = tile(screen, "Tasks")
    await expect(tasks).to_contain_text("3 dead letters")
    await expect(tasks.locator(".tile-value")).to_have_text("3")
    await expect(tasks.locator(".tile-value")).to_have_class(re.compile(r"\bbad\b"))
    bars = await screen.page.locator(".queues b").all_inner_texts()
    assert sum(map(int, bars)) == 3


async def test_alerts_of_one_kind_share_a_banner_and_charts_stay_visible(
    screen: Screen, api: ApiClient, server: ServerProcess
) -> None:
    await screen.page.set_viewport_size({"width": 1280, "height": 800})
    names = [f"{api.namespace[:40]}-{number}" for number in range(12)]
    for name in names:
        other = ApiClient(server.url, name)
        other.configure(unpolled_alert="1s", waiting_alert="1s")
        other.beat("w", lease_duration="1s", bound_activities=[{**activity("a"), "task_queue": "elsewhere"}])
        other.schedule("waits")
        other.schedule("poison", task_queue="poisoned", retry_policy={"maximum_worker_deaths": 1})
        other.beat("busy", lease_duration="1s", task_queue="poisoned")
        [task] = other.post(
            "activities/poll", {"worker_instance_key": "busy", "task_queue": "poisoned", "wait": "5s"}
        )["activities"]
        confirmed = [{**task["id"], "attempt": task["attempt"]}]
        other.beat("busy", lease_duration="1s", task_queue="poisoned", bound_activities=confirmed)
    await screen.page.goto(screen.url)
    group = screen.page.locator("details.alert").filter(has_text="No active worker")
    await expect(group.locator(".alert-count")).to_have_text(re.compile(r"^(1[2-9]|[2-9]\d)$"))
    message = group.get_by_text(f"of {names[0]} died and none is active")
    await expect(message).not_to_be_visible()
    await screen.page.get_by_role("button", name=re.compile("more banner")).wait_for()
    chart = screen.page.locator(".chart").first
    await expect(chart).to_be_in_viewport(ratio=1)
    await group.locator("summary").click()
    await expect(message).to_be_visible()
    await screen.page.get_by_role("button", name=re.compile("more banner")).click()
    await expect(screen.page.locator("details.alert").filter(has_text="Dead letters")).to_be_visible()
    await message.click()
    await expect(screen.page.get_by_label("Namespace")).to_have_value(names[0])


async def test_a_quarantine_shows_a_banner_that_links_to_the_activity(screen: Screen, api: ApiClient) -> None:
    api.schedule("poison", retry_policy={"maximum_worker_deaths": 1})
    api.die_holding_work("w")
    await screen.open("overview")
    banner = screen.page.locator(".alert").filter(has_text="quarantined")
    await expect(banner).to_be_visible()
    await banner.click()
    await expect(screen.row("poison")).to_contain_text("quarantined")


async def test_a_namespace_can_be_paused_and_resumed(screen: Screen, api: ApiClient) -> None:
    api.beat("w", lease_duration="60s")
    await screen.open("overview")
    row = screen.row(api.namespace)
    await row.get_by_role("button", name="Pause all").click()
    await expect(screen.dialog).to_contain_text("those that join later too")
    await screen.confirm("Pause all", reason="migration")
    await screen.shows_message(re.compile("Paused"))
    await expect(row).to_contain_text("paused")
    assert api.worker("w")["paused"]
    await row.get_by_role("button", name="Resume all").click()
    await screen.confirm("Resume all")
    await screen.shows_message(re.compile("Resumed"))
    await expect(row.get_by_role("button", name="Pause all")).to_be_visible()
    assert not api.worker("w")["paused"]


async def test_all_namespaces_are_listed_and_one_can_be_chosen(screen: Screen, api: ApiClient) -> None:
    api.beat("w", lease_duration="60s", bound_activities=[{**activity("a"), "task_queue": "q"}])
    await screen.page.goto(screen.url)
    await expect(screen.page.locator("h1")).to_have_text("Fleet")
    await screen.page.get_by_role("link", name=api.namespace, exact=True).click()
    await expect(screen.row("w").last).to_contain_text("active")
    await expect(screen.page.get_by_label("Namespace")).to_have_value(api.namespace)
    await screen.page.get_by_role("navigation", name="Views").get_by_role("link", name="Events").click()
    await expect(screen.page).to_have_url(re.compile(f"ns={api.namespace}"))
    await screen.page.get_by_label("Namespace").select_option("")
    await expect(screen.page.get_by_text("of all namespaces")).to_be_visible()


@pytest.mark.phone
@pytest.mark.dark
async def test_the_overview_fits_a_phone(screen: Screen, api: ApiClient) -> None:
    api.beat("w", lease_duration="60s")
    await screen.open("overview")
    await expect(screen.page.locator(".chart canvas")).to_have_count(5)
    assert not await screen.overflowing_elements()
    background = await screen.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert background == "rgb(13, 17, 23)"
