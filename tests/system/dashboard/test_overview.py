"""The overview of the fleet."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Locator, expect

from tests.system.dashboard.screen import Screen
from tests.system.dashboard.server_and_workers import ApiClient, activity


def tile(screen: Screen, label: str) -> Locator:
    return screen.page.locator(".tile").filter(has=screen.page.get_by_text(label, exact=True))


async def test_tiles_and_charts_show_the_state_of_the_fleet(screen: Screen, api: ApiClient) -> None:
    await screen.open("overview", range="5")
    api.beats([{"worker_instance_key": f"w-{number}", "lease_duration": "60s"} for number in range(12)])
    api.expire("w-3")
    await expect(tile(screen, "Active").locator(".tile-value")).to_have_text("11")
    await expect(tile(screen, "Inactive").locator(".tile-value")).to_have_text("1")
    await expect(tile(screen, "Shards").locator(".tile-value")).to_have_text("16/16")
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
    banner = screen.page.locator(".alert").filter(has_text="24 workers")
    await expect(banner).to_contain_text("died within 60 s")
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
    row = screen.row(api.namespace)
    await expect(row).to_contain_text("(24 held)")
    await row.get_by_role("button", name="Release").click()
    await expect(screen.dialog).to_contain_text("24 workers fell silent together")
    await screen.confirm("Release", reason="we know why")
    await screen.shows_message(re.compile("Released: 24 workers"))
    await expect(banner).to_contain_text("died within 60 s")


async def test_a_quarantine_shows_a_banner_that_links_to_the_activity(screen: Screen, api: ApiClient) -> None:
    api.schedule("poison", retry_policy={"maximum_worker_deaths": 1})
    api.die_holding_work("w")
    await screen.open("overview")
    banner = screen.page.locator(".alert").filter(has_text="killed")
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
