"""The view of progress, and the counters on a worker's page."""

from __future__ import annotations

from playwright.async_api import expect

from tests.system.dashboard.screen import Screen
from tests.system.dashboard.server_and_workers import ApiClient


def report(api: ApiClient, unit: str, **fields: object) -> None:
    api.post("progress", {"worker_instance_key": "w", "unit": unit, **fields})


async def test_units_are_shown_as_they_progress_and_can_be_forgotten(screen: Screen, api: ApiClient) -> None:
    api.beat("w", lease_duration="60s", successes="3", errors="1", last_error="<b>torn</b>")
    report(api, "orders/größe", successes="1234")
    report(api, "stock", error="<i>kaputt</i>")
    await screen.open("progress")
    await expect(screen.row("orders/größe")).to_contain_text("1,234")
    await expect(screen.row("stock")).to_contain_text("<i>kaputt</i>")
    report(api, "orders/größe", successes="1")
    await expect(screen.row("orders/größe")).to_contain_text("1,235")
    await screen.page.get_by_role("button", name="failing").click()
    await expect(screen.row("orders/größe")).to_have_count(0)
    await screen.button("failing").click()
    await screen.row("orders/größe").get_by_role("button", name="Forget").click()
    await screen.confirm("Forget", reason="the table is gone")
    await screen.shows_message("Forgotten.")
    await expect(screen.row("orders/größe")).to_have_count(0)
    await screen.open("worker", key="w")
    facts = screen.page.locator(".facts")
    await expect(facts).to_contain_text("1 applied since it registered")
    await expect(facts).to_contain_text("3 succeeded, 1 failed")
    await expect(facts).to_contain_text("<b>torn</b>")
