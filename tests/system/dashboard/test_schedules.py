"""The view of schedules."""

from __future__ import annotations

from playwright.async_api import expect

from tests.system.dashboard.screen import Screen
from tests.system.dashboard.server_and_workers import ApiClient


async def test_schedules_can_be_watched_paused_fired_and_deleted(screen: Screen, api: ApiClient) -> None:
    activity = {"activity_type": "<b>report</b>", "task_queue": "night"}
    for name, when in (
        ("nachts <i>🌙</i>", {"cron": "30 2 * * *", "time_zone": "Europe/Berlin"}),
        ("often", {"every": "3600s"}),
    ):
        api.post("schedules", {"schedule_id": name, "spec": {"activity": activity, **when}})
    await screen.open("schedules")
    row = screen.row("nachts <i>🌙</i>")
    await expect(row).to_contain_text("30 2 * * * (Europe/Berlin)")
    await expect(row).to_contain_text("<b>report</b>")
    await expect(screen.row("often")).to_contain_text("every 1 h")
    await row.get_by_role("button", name="Pause").click()
    await screen.confirm("Pause", reason="umzug")
    await screen.shows_message("Paused.")
    await expect(row).to_contain_text("paused")
    await row.get_by_role("button", name="Fire now").click()
    await screen.confirm("Fire")
    await expect(row.locator("td[data-label=fired]")).to_have_text("1")
    await row.get_by_role("button", name="Resume").click()
    await screen.confirm("Resume")
    await screen.shows_message("Resumed.")
    await screen.row("often").get_by_role("button", name="Delete").click()
    await screen.confirm("Delete")
    await screen.shows_message("Deleted.")
    await expect(screen.row("often")).to_have_count(0)
    await row.locator("td[data-label=last] a").click()
    await expect(screen.page.locator("h1")).to_contain_text("schedule:nachts")
