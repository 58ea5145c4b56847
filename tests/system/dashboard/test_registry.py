"""The page of registered components."""

from __future__ import annotations

from typing import Any

from playwright.async_api import expect

from tests.system.dashboard.screen import Screen
from tests.system.dashboard.server_and_workers import ApiClient


def register(api: ApiClient, key: str, **fields: Any) -> None:
    api.post("registry/register", {"worker_instance_key": key, **fields})


async def test_components_are_listed_and_filtered_by_kind_and_status(screen: Screen, api: ApiClient) -> None:
    register(
        api, "broker:nats-1", uri="nats://host-a:4222", host_name="host-a", process_id="4711", lease_duration="60s",
        labels={"zone": "b", "tier": "1"},
    )  # fmt: skip
    register(api, "broker:nats-1", host_name="host-b", process_id="99")
    register(api, "worker_pool:images", capacity=16, status="draining", lease_duration="60s")
    register(api, "server_api:gone", host_name="host-c", process_id="1")
    api.post("registry/deregister", {"worker_instance_key": "server_api:gone"})
    await screen.open("registry")
    broker, names = screen.row("nats-1"), screen.page.locator("tbody tr td:first-child")
    for text in (
        "broker",
        "ready",
        "host-a:4711",
        "1 replica",
        "host-b:99",
        "nats://host-a:4222",
        "tier=1 zone=b",
    ):
        await expect(broker).to_contain_text(text)
    pool = screen.row("images")
    for text in ("worker_pool", "draining", "16"):
        await expect(pool).to_contain_text(text)
    await expect(screen.row("gone")).to_contain_text("offline")
    await expect(names).to_have_text(["nats-1", "gone", "images"])
    await screen.page.get_by_role("button", name="offline").click()
    await expect(names).to_have_text(["gone"])
    await screen.page.get_by_role("button", name="offline").click()
    await screen.page.get_by_role("button", name="worker_pool").click()
    await expect(names).to_have_text(["images"])
    await screen.open("registry", status="stale")
    await expect(names).to_have_text(["gone"])
    await screen.open("registry")
    assert await screen.overflowing_elements() == []
    await broker.get_by_role("link", name="nats-1").click()
    await expect(screen.page.locator("h1")).to_have_text("broker:nats-1")


async def test_the_page_of_a_component_shows_its_entry_also_on_a_phone(
    screen: Screen, api: ApiClient
) -> None:
    uri = "http://" + "a-very-long-host-name." * 6 + "example:8080/pools"
    register(
        api, "worker_pool:images", uri=uri, capacity=16, host_name="host-a", process_id="1", expected_interval="15s",
        runtime_json='{"type":"cpu","cores":4}', capabilities=["resize"], labels={"zone": "b"},
    )  # fmt: skip
    register(api, "worker_pool:images", host_name="host-b", process_id="99")
    await screen.page.set_viewport_size({"width": 390, "height": 844})
    await screen.open_worker("worker_pool:images")
    entry = screen.page.get_by_label("Registry entry")
    for text in ("worker_pool", "ready", uri, "16", "15 s", '{"type":"cpu","cores":4}', "host-b:99"):
        await expect(entry).to_contain_text(text)
    assert await screen.overflowing_elements() == []
    for view in ("registry", "progress"):
        await screen.open(view)
        assert await screen.overflowing_elements() == []
    api.beat("plain")
    await screen.open_worker("plain")
    await expect(entry).to_have_count(0)


async def test_the_page_follows_what_happens_and_survives_strange_words(
    screen: Screen, api: ApiClient
) -> None:
    await screen.open("registry")
    await expect(screen.page.get_by_text("No worker has ever been here").or_(screen.page.get_by_text("No component is registered here"))).to_be_visible()  # fmt: skip
    register(api, "broker:<b>x</b>", status="__proto__", lease_duration="60s", uri="javascript:alert(1)")
    await expect(screen.row("<b>x</b>")).to_contain_text("__proto__")
    api.post("registry/heartbeat", {"worker_instance_key": "broker:<b>x</b>", "status": "constructor"})
    await expect(screen.row("<b>x</b>")).to_contain_text("constructor")
