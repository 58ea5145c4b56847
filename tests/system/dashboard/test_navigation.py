"""The frame of every view: colours, keys, links between views, events and nodes."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import expect

from tests.system.dashboard.screen import Screen
from tests.system.dashboard.server_and_workers import ApiClient


async def test_colours_follow_the_system_until_the_user_chooses(screen: Screen, api: ApiClient) -> None:
    api.beat("w")
    await screen.open("overview")
    root = screen.page.locator("html")
    await expect(root).to_have_attribute("data-theme", "light")
    await screen.page.emulate_media(color_scheme="dark")
    await expect(root).to_have_attribute("data-theme", "dark")
    await screen.button("To light colours").click()
    await expect(root).to_have_attribute("data-theme", "light")
    await screen.page.reload()
    await expect(root).to_have_attribute("data-theme", "light")
    await expect(screen.page.locator("h1")).to_be_visible()  # from now on the page listens to keys
    await screen.page.keyboard.press("d")
    await expect(root).to_have_attribute("data-theme", "dark")


async def test_keys_open_every_view(screen: Screen, api: ApiClient) -> None:
    api.beat("w", lease_duration="60s")
    await screen.open("overview")
    for key, title in (
        ("w", "Workers"),
        ("a", "Activities"),
        ("p", "Progress"),
        ("t", "Tasks"),
        ("e", "Events"),
        ("n", "Nodes and shards"),
        ("o", "Namespace"),
    ):
        await screen.page.keyboard.press("g")
        await screen.page.keyboard.press(key)
        await expect(screen.page.locator("h1")).to_contain_text(title)
        await expect(screen.page).to_have_url(re.compile(f"ns={api.namespace}"))
    await screen.page.keyboard.press("?")
    await expect(screen.dialog).to_contain_text("filter what is shown")
    await screen.page.keyboard.press("Escape")
    await expect(screen.dialog).to_have_count(0)


async def test_keys_do_nothing_while_the_user_types(screen: Screen, api: ApiClient) -> None:
    api.beat("gw-1", lease_duration="60s")
    await screen.open("workers")
    await screen.page.keyboard.press("/")
    await screen.page.keyboard.type("gw?d/")
    await expect(screen.page.get_by_label("Filter workers")).to_have_value("gw?d/")
    await expect(screen.page.locator("h1")).to_have_text("Workers")
    await screen.page.keyboard.press("Escape")
    await expect(screen.page.get_by_label("Filter workers")).not_to_be_focused()


async def test_the_tab_key_skips_the_navigation_and_shows_the_focus(screen: Screen, api: ApiClient) -> None:
    api.beat("w", lease_duration="60s")
    await screen.page.goto(screen.url)
    await expect(screen.page.locator("h1")).to_have_text("Fleet")
    await screen.page.evaluate("document.activeElement.blur()")
    await screen.page.keyboard.press("Tab")
    skip = screen.page.get_by_role("link", name="To the content")
    await expect(skip).to_be_focused()
    await expect(skip).to_be_in_viewport()
    await screen.page.keyboard.press("Enter")
    await expect(screen.page.locator("main")).to_be_focused()
    await screen.page.keyboard.press("Tab")
    outline = await screen.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


async def test_events_scroll_and_can_be_paused(screen: Screen, api: ApiClient) -> None:
    api.beat("before", lease_duration="60s")
    await screen.open("events")
    events = screen.page.locator(".event")
    await expect(events).to_have_count(1)
    await expect(events).to_contain_text("before registered with lease 1 for 1 min")
    api.beat("one", lease_duration="60s")
    await expect(events).to_have_count(2)
    await expect(events.first).to_contain_text("one registered with lease 1 for 1 min")
    await screen.button("Hold still").click()
    api.beat("two", lease_duration="60s")
    await screen.page.get_by_role("button", name="Go on (1 new)").click()
    await expect(events.first).to_contain_text("two registered")
    await screen.page.get_by_label("Filter events").fill("one")
    await expect(events).to_have_count(1)
    await events.get_by_role("link", name="one").click()
    await expect(screen.page.locator("h1")).to_have_text("one")


async def test_the_events_of_a_namespace_without_any_say_so(screen: Screen) -> None:
    await screen.open("events")
    await expect(screen.page.get_by_text("Waiting for something to happen")).to_be_visible()


async def test_nodes_and_shards_are_shown(screen: Screen, api: ApiClient) -> None:
    api.beat("w", lease_duration="60s")
    await screen.open("nodes")
    node = screen.page.locator("tbody tr")
    await expect(node).to_have_count(1)
    await expect(node).to_contain_text("serving")
    await expect(node).to_contain_text("answers this page")
    await expect(screen.page.locator(".shard")).to_have_count(16)
    await expect(screen.page.locator(".shard.unserved")).to_have_count(0)


@pytest.mark.phone
async def test_every_view_fits_a_phone(screen: Screen, api: ApiClient) -> None:
    api.beat("w" * 200, lease_duration="60s", task_queue="q" * 100, build_id="b" * 100, host_name="h" * 100)
    await screen.open("overview")
    screen.refusals_expected = True  # there is too little history for insight
    for view in ("Workers", "Activities", "Tasks", "Events", "Insight", "Nodes", "Overview"):
        link = screen.page.get_by_role("navigation", name="Views").get_by_role("link", name=view)
        await link.click()
        await expect(link).to_have_attribute("aria-current", "page")
        await expect(link).to_be_in_viewport()
        await expect(screen.page.get_by_text("Loading")).to_have_count(0)
        assert not await screen.overflowing_elements(), view


async def test_an_unknown_address_is_reported(screen: Screen) -> None:
    await screen.page.goto(f"{screen.url}#/nowhere")
    await expect(screen.page.get_by_text("There is no such view.")).to_be_visible()
