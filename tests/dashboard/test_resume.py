"""The server goes away and comes back: the page says so, and goes on where it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Request, expect

from tests.dashboard.screen import Screen
from tests.dashboard.stage import Api, ServerProcess


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path, TAKEOVER_GRACE_MS="0").start()
    yield server
    server.kill()


@pytest.fixture
async def away(chromium: Browser, own_server: ServerProcess, namespace: str) -> Screen:
    context = await chromium.new_context(viewport={"width": 1400, "height": 900}, reduced_motion="reduce")
    screen = Screen(await context.new_page(), own_server.url, namespace)
    screen.refusals_expected = True
    await screen.prepare()
    return screen


async def test_after_a_restart_the_stream_goes_on_right_after_the_last_event(
    away: Screen, own_server: ServerProcess
) -> None:
    resumed: list[str] = []

    def note(request: Request) -> None:
        if "/events" in request.url and "last-event-id" in request.headers:
            resumed.append(request.headers["last-event-id"])

    away.page.on("request", note)
    api = Api(own_server.url, away.namespace)
    api.beat("before", lease_duration="60s")
    await away.open("events")
    api.beat("seen", lease_duration="60s")
    events = away.page.locator(".event")
    await expect(events).to_have_count(1)

    own_server.stop()
    banner = away.page.locator(".lost-banner")
    await expect(banner).to_contain_text("The server cannot be reached. What you see is as of")
    await expect(away.page.locator(".line")).to_have_text("not live")
    # What happens before the page is back, it has to catch up with.
    await away.page.context.set_offline(True)
    own_server.start()
    api.beat("meanwhile", lease_duration="60s")
    await away.page.context.set_offline(False)

    await expect(banner).to_have_count(0)
    await expect(away.page.locator(".line")).to_have_text("live")
    texts = events.locator(".event-subject")
    await expect(texts.filter(has_text="meanwhile")).to_have_count(1)
    await expect(texts.filter(has_text="seen")).to_have_count(1)
    await expect(texts.filter(has_text="before")).to_have_count(0)
    assert resumed
    api.beat("afterwards", lease_duration="60s")
    await expect(texts.filter(has_text="afterwards")).to_have_count(1)
    assert not await away.complaints()


async def test_nothing_looks_live_while_the_server_is_killed(away: Screen, own_server: ServerProcess) -> None:
    api = Api(own_server.url, away.namespace)
    api.beat("lone", lease_duration="3600s")
    await away.open("workers")
    await expect(away.page.locator(".lease-left")).to_contain_text("min")
    own_server.kill()
    await expect(away.page.locator(".lost-banner")).to_be_visible()
    opacity = await away.page.evaluate("getComputedStyle(document.querySelector('.grid-body')).opacity")
    assert float(opacity) < 1
    await away.button("Try now").click()
    await expect(away.page.locator(".line")).to_have_text("not live")
    own_server.start()
    await expect(away.page.locator(".lost-banner")).to_have_count(0)
    api.beat("next", lease_duration="3600s")
    await expect(away.row("next")).to_contain_text("active")
    assert not await away.complaints()


async def test_a_server_with_other_data_is_looked_at_anew(away: Screen, own_server: ServerProcess) -> None:
    api = Api(own_server.url, away.namespace)
    for number in range(5):
        api.beat(f"old-{number}", lease_duration="3600s")
    await away.open("workers")
    await expect(away.page.locator(".grid-row")).to_have_count(5)
    own_server.stop()
    own_server.forget()
    own_server.start()
    api.beat("fresh", lease_duration="3600s")
    await expect(away.page.locator(".grid-row .col-key")).to_have_text(["fresh"])
    assert not await away.complaints()
