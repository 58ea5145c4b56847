"""When the server stops and returns, the page says so and continues where it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Request, expect

from liveness.store.sql import SqlStore
from liveness.store.sqlite import SqliteDatabase
from tests.system.dashboard.screen import Screen
from tests.system.dashboard.server_and_workers import ApiClient, ServerProcess


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path, TAKEOVER_GRACE_MS="0").start()
    yield server
    server.kill()


@pytest.fixture
async def reconnecting_screen(chromium: Browser, own_server: ServerProcess, namespace: str) -> Screen:
    context = await chromium.new_context(viewport={"width": 1400, "height": 900}, reduced_motion="reduce")
    screen = Screen(await context.new_page(), own_server.url, namespace)
    screen.refusals_expected = True
    await screen.prepare()
    return screen


async def test_after_a_restart_the_stream_continues_after_the_last_event(
    reconnecting_screen: Screen, own_server: ServerProcess
) -> None:
    resumed: list[str] = []

    def note(request: Request) -> None:
        if "/events" in request.url and "last-event-id" in request.headers:
            resumed.append(request.headers["last-event-id"])

    reconnecting_screen.page.on("request", note)
    api = ApiClient(own_server.url, reconnecting_screen.namespace)
    api.beat("before", lease_duration="60s")
    await reconnecting_screen.open("events")
    api.beat("seen", lease_duration="60s")
    events = reconnecting_screen.page.locator(".event")
    await expect(events).to_have_count(2)

    own_server.stop()
    banner = reconnecting_screen.page.locator(".lost-banner")
    await expect(banner).to_contain_text("The server cannot be reached. This page shows the state as of")
    await expect(reconnecting_screen.page.locator(".line")).to_have_text("not live")
    # The page has to catch up with events that happen before it reconnects.
    await reconnecting_screen.page.context.set_offline(True)
    own_server.start()
    api.beat("meanwhile", lease_duration="60s")
    await reconnecting_screen.page.context.set_offline(False)

    await expect(banner).to_have_count(0)
    await expect(reconnecting_screen.page.locator(".line")).to_have_text("live")
    texts = events.locator(".event-subject")
    await expect(texts.filter(has_text="meanwhile")).to_have_count(1)
    await expect(texts.filter(has_text="seen")).to_have_count(1)
    await expect(texts.filter(has_text="before")).to_have_count(1)
    assert resumed
    api.beat("afterwards", lease_duration="60s")
    await expect(texts.filter(has_text="afterwards")).to_have_count(1)
    assert not await reconnecting_screen.page_errors()


async def test_the_page_shows_nothing_as_live_while_the_server_is_down(
    reconnecting_screen: Screen, own_server: ServerProcess
) -> None:
    api = ApiClient(own_server.url, reconnecting_screen.namespace)
    api.beat("lone", lease_duration="3600s")
    await reconnecting_screen.open("workers")
    await expect(reconnecting_screen.page.locator(".lease-left")).to_contain_text("min")
    own_server.kill()
    await expect(reconnecting_screen.page.locator(".lost-banner")).to_be_visible()
    opacity = await reconnecting_screen.page.evaluate(
        "getComputedStyle(document.querySelector('.grid-body')).opacity"
    )
    assert float(opacity) < 1
    await reconnecting_screen.button("Try now").click()
    await expect(reconnecting_screen.page.locator(".line")).to_have_text("not live")
    own_server.start()
    await expect(reconnecting_screen.page.locator(".lost-banner")).to_have_count(0)
    api.beat("next", lease_duration="3600s")
    await expect(reconnecting_screen.row("next")).to_contain_text("active")
    assert not await reconnecting_screen.page_errors()


async def test_the_page_reloads_everything_from_a_server_with_other_data(
    reconnecting_screen: Screen, own_server: ServerProcess
) -> None:
    api = ApiClient(own_server.url, reconnecting_screen.namespace)
    for number in range(5):
        api.beat(f"old-{number}", lease_duration="3600s")
    await reconnecting_screen.open("workers")
    await expect(reconnecting_screen.page.locator(".grid-row")).to_have_count(5)
    own_server.stop()
    own_server.delete_database()
    own_server.start()
    api.beat("fresh", lease_duration="3600s")
    await expect(reconnecting_screen.page.locator(".grid-row .col-key")).to_have_text(["fresh"])
    await expect(reconnecting_screen.page.locator(".line")).to_have_text("live")
    assert not await reconnecting_screen.page_errors()


async def test_the_page_starts_anew_if_events_were_deleted_before_it_saw_them(
    reconnecting_screen: Screen, own_server: ServerProcess, tmp_path: Path
) -> None:
    api = ApiClient(own_server.url, reconnecting_screen.namespace)
    await reconnecting_screen.open("events")
    api.beat("seen", lease_duration="3600s")
    subjects = reconnecting_screen.page.locator(".event-subject")
    await expect(subjects).to_have_text(["seen"])
    own_server.stop()
    await expect(reconnecting_screen.page.locator(".lost-banner")).to_be_visible()
    await reconnecting_screen.page.context.set_offline(True)
    own_server.start()
    api.beat("missed", lease_duration="3600s")
    own_server.stop()
    await delete_all_events(tmp_path / "liveness.db")
    own_server.start()
    await reconnecting_screen.page.context.set_offline(False)
    await expect(reconnecting_screen.page.locator(".line")).to_have_text("live")
    await expect(subjects).to_have_count(0)
    api.beat("afterwards", lease_duration="3600s")
    await expect(subjects).to_have_text(["afterwards"])
    assert not await reconnecting_screen.page_errors()


async def delete_all_events(database: Path) -> None:
    store = SqlStore(SqliteDatabase(database))
    await store.open(16, "tests")
    shards = await store.take_over(range(16), "tests", wall_ms=0)
    assert await store.prune_events({shard.shard_id: shard.epoch for shard in shards}, {}, 2**62)
    await store.close()
