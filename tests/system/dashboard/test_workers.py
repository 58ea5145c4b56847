"""The table of workers."""

from __future__ import annotations

import re
from typing import Any

import grpc
from playwright.async_api import expect

from liveness.v1 import service_pb2
from liveness.v1.service_pb2_grpc import LivenessServiceStub
from tests.system.dashboard.screen import Screen
from tests.system.dashboard.server_and_workers import ApiClient


def beat(key: str, **fields: Any) -> dict[str, Any]:
    return {"worker_instance_key": key, "lease_duration": "60s", **fields}


async def test_workers_are_listed_with_state_lease_build_and_host(screen: Screen, api: ApiClient) -> None:
    api.beat("painter-1", build_id="b-17", host_name="atlas", task_queue="photos")
    await screen.open("workers")
    row = screen.row("painter-1")
    for text in ("active", "b-17", "atlas", "photos"):
        await expect(row).to_contain_text(text)
    await expect(row.locator(".lease-left")).to_contain_text(" s")


async def test_a_worker_appears_and_disappears_without_a_reload(screen: Screen, api: ApiClient) -> None:
    api.beat("first", lease_duration="60s")
    await screen.open("workers")
    await expect(screen.row("first")).to_contain_text("active")
    api.beat("second", lease_duration="60s", build_id="fresh")
    await expect(screen.row("second")).to_contain_text("fresh")
    api.expire("first")
    await expect(screen.row("first")).to_contain_text("inactive")
    await expect(screen.row("first")).to_contain_text("forced out")


async def test_the_filter_finds_by_key_host_build_queue_and_state(screen: Screen, api: ApiClient) -> None:
    api.beats([
        beat("alpha", host_name="atlas", build_id="b-1", task_queue="photos"),
        beat("beta", host_name="borea", build_id="b-2", task_queue="films"),
    ])  # fmt: skip
    api.beat("gamma", host_name="atlas.example", build_id="b-3", task_queue="atlas")
    api.expire("gamma")
    await screen.open("workers")
    keys = screen.page.locator(".grid-row .col-key")
    await expect(keys).to_have_count(3)
    search = screen.page.get_by_label("Filter workers")
    for text, found in (
        ("bet", ["beta"]),
        ("borea", ["beta"]),
        ("b-1", ["alpha"]),
        ("films", ["beta"]),
        ("inactive", ["gamma"]),
        ("active", ["alpha", "beta"]),
        ("state:active", ["alpha", "beta"]),
        ("state:inact", ["gamma"]),
        ("atlas", ["alpha", "gamma"]),
        ("host:atlas b-3", ["gamma"]),
        ("queue:atlas", ["gamma"]),
        ("ALPHA", ["alpha"]),
        ("nobody", []),
    ):
        await search.fill(text)
        await expect(keys).to_have_text(found)
    await expect(screen.page.get_by_text("No worker matches.")).to_be_visible()


async def test_the_address_holds_filter_and_order(screen: Screen, api: ApiClient) -> None:
    api.beats([beat("a", build_id="2"), beat("b", build_id="1"), beat("c", build_id="3")])
    await screen.open("workers")
    keys = screen.page.locator(".grid-row .col-key")
    await screen.button("build").click()
    await expect(keys).to_have_text(["b", "a", "c"])
    await screen.button("build").click()
    await expect(keys).to_have_text(["c", "a", "b"])
    await screen.page.get_by_label("Filter workers").fill("build:2")
    await expect(keys).to_have_text(["a"])
    await expect(screen.page).to_have_url(re.compile(r"sort=-build.*q=build|q=build.*sort=-build"))
    await screen.page.reload()
    await expect(keys).to_have_text(["a"])
    await expect(screen.page.get_by_role("columnheader", name="build")).to_have_attribute(
        "aria-sort", "descending"
    )


async def test_states_can_be_chosen_and_show_their_counts(screen: Screen, api: ApiClient) -> None:
    api.beats([beat("a"), beat("b"), beat("c")])
    api.expire("b")
    await screen.open("workers")
    keys = screen.page.locator(".grid-row .col-key")
    inactive = screen.page.get_by_role("button", name="inactive 1")
    await inactive.click()
    await expect(keys).to_have_text(["b"])
    await expect(inactive).to_have_attribute("aria-pressed", "true")
    await inactive.click()
    await expect(keys).to_have_count(3)


async def test_the_lease_bar_shrinks_and_is_full_again_after_a_heartbeat(
    screen: Screen, api: ApiClient
) -> None:
    api.beat("lone", lease_duration="12s")
    await screen.open("workers")
    bar = screen.page.locator(".lease-track i")
    share = "parseFloat(document.querySelector('.lease-track i').style.transform.slice(7))"
    await expect(bar).to_have_count(1)
    # As in a large fleet, whose next refresh is late: only a request for this row shows the renewal.
    await screen.page.route("**/workers?*", lambda _: None)
    await screen.until(f"{share} < 0.6")
    # The table requests an ended lease; a plain renewal causes no event.
    api.beat("lone", lease_duration="12s")
    await screen.until(f"{share} > 0.7")
    await screen.page.unroute_all(behavior="ignoreErrors")


async def test_a_disconnected_worker_is_marked(screen: Screen, api: ApiClient, server: Any) -> None:
    api.beat("lone", session_id="s", sequence=1, lease_duration="60s")
    await _attach_and_break(server.address, api.namespace, "lone")
    await screen.open("workers")
    await expect(screen.row("lone")).to_contain_text("suspect")
    await screen.page.get_by_role("button", name="suspect 1").click()
    await expect(screen.page.locator(".grid-row .col-key")).to_have_text(["lone"])


async def _attach_and_break(address: str, namespace: str, key: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        stream = LivenessServiceStub(channel).Attach()
        attach = service_pb2.AttachRequest.Attach(
            namespace=namespace, worker_instance_key=key, session_id="s"
        )
        attach.disconnect_grace.seconds = 50
        await stream.write(service_pb2.AttachRequest(attach=attach))
        await stream.read()
        stream.cancel()


async def test_the_keyboard_moves_in_the_table_and_opens_a_worker(screen: Screen, api: ApiClient) -> None:
    api.beats([beat(f"w-{number:03d}") for number in range(200)])
    await screen.open("workers")
    await expect(screen.row("w-000")).to_be_visible()
    await screen.page.keyboard.press("/")
    await expect(screen.page.get_by_label("Filter workers")).to_be_focused()
    await screen.page.keyboard.type("w-1")
    await screen.page.keyboard.press("ArrowDown")
    grid = screen.page.get_by_role("grid")
    await expect(grid).to_be_focused()
    for key in ("End", "ArrowUp", "ArrowUp", "ArrowDown"):
        await screen.page.keyboard.press(key)
    await expect(screen.row("w-198")).to_have_attribute("aria-selected", "true")
    await expect(screen.row("w-198")).to_be_in_viewport()
    await screen.page.keyboard.press("Enter")
    await expect(screen.page.locator("h1")).to_have_text("w-198")
    await screen.page.go_back()
    await expect(screen.row("w-198")).to_be_in_viewport()
