"""The view of incidents and of the lease to choose, on a real server whose workers really fall silent."""

from __future__ import annotations

from playwright.async_api import expect

from tests.system.dashboard.screen import Screen
from tests.system.dashboard.server_and_workers import ApiClient


def beat(api: ApiClient, worker: str, host: str, lease: str) -> None:
    api.beat(
        worker, session_id=f"s-{worker}", lease_duration=lease, host_name=host, labels={"zone": "<b>b</b>"}
    )


async def test_workers_that_died_together_are_one_incident_and_a_lease_is_recommended(
    screen: Screen, api: ApiClient
) -> None:
    screen.refusals_expected = True
    await screen.open("insight")
    await expect(screen.page.get_by_text("No three workers died")).to_be_visible()
    await expect(screen.page.get_by_text("There is too little history to tune")).to_be_visible()
    for number in range(20):
        beat(api, f"alive-{number}", "web-1", "60s")
    for number in range(6):
        beat(api, f"dead-{number}", "<i>db-3</i>", "2s")
    incident = screen.page.locator(".incident")
    await expect(incident).to_contain_text(
        "Probably it is the host <i>db-3</i>: all of them had it", timeout=20_000
    )
    await expect(incident.locator(".incident-workers li")).to_have_count(6)
    await expect(incident.locator(".shares")).to_contain_text("0 of 20")
    await screen.page.reload()
    chart = screen.page.locator(".tuning-chart svg")
    await expect(chart).to_be_visible()
    assert "lease 2 s: found after 2" in (await chart.get_attribute("aria-label") or "")
    await expect(screen.page.locator(".verdict")).to_contain_text("Keep the lease of 2 s: silences")
    await expect(screen.page.locator("tr.best")).to_contain_text("today: lease 2 s")
    await screen.open("overview")
    await expect(screen.page.locator(".alerts")).to_contain_text("6 workers of")
    await screen.open("worker", key="dead-0")
    await screen.page.get_by_role("link", name="One incident:").click()
    await expect(screen.page.locator(".tuning-chart svg")).to_be_visible()
