"""Supervised processes on the dashboard: real ones, run by `liveness supervise`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Locator, expect

from liveness.domain.component import ComponentStatus
from tests.system.dashboard.screen import Screen
from tests.system.dashboard.server_and_workers import ServerProcess
from tests.system.supervisor.supervised import Supervised, program

COUNTING = f"""
[group.counting]
command = {shlex.join(program("counting"))!r}
processes = 2
snapshot_interval = "1s"
"""
FAILING = f"""
[group.failing]
command = {shlex.join([*program("ends"), "3"])!r}
restart.min_delay = "10ms"
restart.max_delay = "10ms"
restart.window_limit = 2
"""
FIRST, FAILED = "worker:counting:0", "worker:failing:0"

_COLOURED_PIXELS = """(canvas) => {
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  let found = 0;
  for (let at = 0; at < data.length; at += 4) found += data[at + 3] > 200 && Math.max(data[at], data[at + 1], data[at + 2]) - Math.min(data[at], data[at + 1], data[at + 2]) > 60;
  return found;
}"""


@pytest.fixture
def supervised(server: ServerProcess, namespace: str, tmp_path: Path) -> Iterator[Supervised]:
    supervised = Supervised(tmp_path, server.address, namespace)
    yield supervised
    if supervised.process is not None:
        supervised.end()
    supervised.close()


def chart(screen: Screen, title: str) -> Locator:
    return screen.page.locator("figure.chart").filter(
        has=screen.page.get_by_role("heading", name=title, exact=True)
    )


async def open_component(screen: Screen, id: str) -> None:
    await screen.open("component", key=id)
    await expect(screen.page.locator("h1")).to_have_text(id)


async def test_the_list_shows_groups_and_what_has_failed(screen: Screen, supervised: Supervised) -> None:
    supervised.start_config(COUNTING + FAILING)
    page = screen.page
    await screen.open("components")
    group = page.get_by_role("region", name="Group counting")
    await expect(group).to_contain_text("supervised")
    await expect(group.get_by_role("row")).to_have_count(3)
    await expect(screen.row(FIRST)).to_contain_text(re.compile(r"healthy.*file_\d+"))
    await expect(screen.row(FAILED)).to_contain_text(
        re.compile(r"failed.*2.*exit code 3.*restarted twice within 300 s, and the limit is 2")
    )
    await expect(page.get_by_role("status").filter(has_text="components")).to_have_text(
        "3 components in 2 groups"
    )
    assert await screen.overflowing_elements() == []
    await screen.open("overview")
    await page.get_by_role("region", name="What needs attention").get_by_text(f"{FAILED} of").click()
    await expect(screen.row(FAILED)).to_be_visible()
    await expect(screen.row(FIRST)).to_have_count(0)  # the alert leads to those that failed


async def test_a_page_shows_output_and_health_over_time_and_restarts_its_component(
    screen: Screen, supervised: Supervised
) -> None:
    supervised.start_config(COUNTING)
    page = screen.page
    await screen.open("components")
    await page.get_by_role("link", name=FIRST, exact=True).click()
    await expect(page.locator(".log")).to_contain_text(re.compile(r"Z processed file_\d+"))
    for title in ("files", "load"):
        await expect(chart(screen, title).locator(".legend b")).to_have_text(re.compile(r"^[1-9][\d.]*$"))
        drawn = await chart(screen, title).locator("canvas").evaluate(_COLOURED_PIXELS)
        assert drawn > 50, f"{title} is drawn"
    await expect(chart(screen, "stage")).to_have_count(0)
    history = page.locator("section").filter(has=page.get_by_role("heading", name="History"))
    assert await history.get_by_role("row").count() <= 5, "snapshots are no rows"

    before = supervised.component()
    assert before is not None
    await screen.button("Restart").click()
    await screen.confirm("Restart", reason="new model")
    await screen.shows_message("The supervisor has order 1.")
    for status in ("stopping", "stopped", "starting"):
        await expect(history.get_by_role("row").filter(has_text=status).first).to_contain_text("new model")
    await expect(page.locator(".worker-title .badges")).to_contain_text("healthy")
    after = supervised.component()
    assert after is not None
    assert after.process_id != before.process_id
    await expect(page.locator(".facts")).to_contain_text(str(after.process_id))


async def test_a_failed_component_shows_its_last_words_and_is_reset(
    screen: Screen, supervised: Supervised
) -> None:
    supervised.start_config(FAILING)
    supervised.when(ComponentStatus.FAILED, group="failing")
    await open_component(screen, FAILED)
    await expect(screen.page.locator(".worker-title .badges")).to_contain_text(
        re.compile("failed.*the limit is 2")
    )
    await expect(screen.page.locator(".log")).to_contain_text("the last words")
    await expect(chart(screen, "restarts").locator(".legend b")).to_have_text("2")
    await expect(screen.button("Stop")).to_have_count(0)
    await screen.button("Reset").click()
    await screen.confirm("Reset")
    await screen.shows_message("The supervisor has order 1.")
    rows = screen.page.get_by_role("row").filter(has_text="failed")
    await expect(rows).to_have_count(2)  # it failed again


async def test_groups_are_paused_resumed_scaled_and_stopped(screen: Screen, supervised: Supervised) -> None:
    supervised.start_config(COUNTING)
    await screen.open("components")
    group = screen.page.get_by_role("region", name="Group counting")

    async def order(button: str, confirm: str = "", **fields: str) -> None:
        await group.get_by_role("button", name=button, exact=True).click()
        await screen.confirm(confirm or button, **fields)
        await expect(screen.dialog).to_have_count(0)

    await expect(group.get_by_text("healthy")).to_have_count(2)
    await order("Pause", reason="disk is full")
    await expect(group.get_by_text("paused", exact=True)).to_have_count(2)
    await order("Resume")
    await expect(group.get_by_text("healthy")).to_have_count(2)
    await order("Scale", processes="3")
    await expect(group.get_by_text("healthy")).to_have_count(3)
    await order(f"Stop {FIRST}", "Stop")
    await expect(screen.row(FIRST)).to_contain_text("stopped")
    await order(f"Start {FIRST}", "Start")
    await expect(group.get_by_text("healthy")).to_have_count(3)
    await group.get_by_role("button", name="Scale", exact=True).click()
    await screen.confirm("Scale", processes="none")
    await expect(screen.dialog.get_by_role("alert")).to_contain_text("must be a whole number")


@pytest.mark.phone
@pytest.mark.dark
async def test_the_page_of_a_component_fits_a_phone(screen: Screen, supervised: Supervised) -> None:
    supervised.start_config(COUNTING)
    await screen.open("components")
    await expect(screen.page.get_by_text("healthy", exact=True).first).to_be_visible()
    assert await screen.overflowing_elements() == []
    await open_component(screen, FIRST)
    await expect(chart(screen, "files").locator(".legend b")).to_have_text(re.compile(r"^[1-9]"))
    assert await screen.overflowing_elements() == []
