"""One worker's page: its timeline, why it died, and the actions on it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.async_api import expect

from tests.system.dashboard.screen import Screen
from tests.system.dashboard.server_and_workers import ApiClient, activity


def hold(api: ApiClient, key: str, *workflows: str, **fields: Any) -> None:
    """Register a worker that holds activities."""
    bound = [activity(workflow) for workflow in workflows]
    api.beat(key, lease_duration="60s", session_id="s", task_queue="photos", bound_activities=bound, **fields)


async def test_the_page_draws_the_workers_timeline(screen: Screen, api: ApiClient) -> None:
    hold(api, "w", "photo-1", "photo-2")
    api.post("workers/pause", {"worker_instance_key": "w", "reason": "upgrade"})
    api.post("workers/resume", {"worker_instance_key": "w"})
    api.expire("w")
    hold(api, "w", "photo-3")
    api.beat("w", lease_duration="60s", session_id="later")
    await screen.open_worker("w")
    picture = screen.page.locator(".timeline-picture")
    await expect(picture.locator(".t-bar.lease")).to_have_count(3)
    await expect(picture.locator(".t-bar.absent")).to_have_count(1)
    await expect(picture.locator(".t-bar.session")).to_have_count(2)
    await expect(picture.locator(".t-bar.paused")).to_have_count(1)
    await expect(picture.locator(".t-mark")).to_have_text(["●", "✕", "▲", "◆"])
    await expect(picture.locator(".t-held")).to_have_count(1)
    await expect(picture).to_have_attribute(
        "aria-label", re.compile("3 leases, 2 sessions, 1 absence, 0 deaths")
    )
    events = screen.page.locator(".event")
    await expect(events.first).to_contain_text("started over in a new session with lease 3")
    await expect(events.last).to_contain_text("registered with lease 1 for 1 min, holding 2 activities")
    await events.filter(has_text="was paused: upgrade").locator("summary").click()
    await expect(events.locator("pre:visible")).to_contain_text('"reason": "upgrade"')


async def test_the_page_updates_by_itself(screen: Screen, api: ApiClient) -> None:
    hold(api, "w", "photo-1")
    await screen.open_worker("w")
    await expect(screen.row("photo-1")).to_be_visible()
    api.expire("w")
    await expect(screen.page.locator(".badges")).to_contain_text("inactive")
    await expect(screen.page.locator(".event").first).to_contain_text("became inactive: forced out")
    await expect(screen.page.locator(".t-bar.absent")).to_have_count(1)
    await expect(screen.row("photo-1")).to_be_visible()  # taken from it, and not unbound yet


async def test_a_death_certificate_shows_the_cause_and_where_the_activities_went(
    screen: Screen, api: ApiClient
) -> None:
    api.schedule("photo-1")
    api.die_holding_work("w", host_name="atlas")
    api.beat("heir", lease_duration="60s")
    await screen.open_worker("w")
    certificate = screen.page.get_by_role("region", name="Death certificate")
    await expect(certificate).to_contain_text("Lease 1 ended at")
    await expect(certificate).to_contain_text("Verdict: stands")
    # A busy machine may have stalled the process; then the certificate says that, too.
    await expect(certificate).to_contain_text(
        re.compile("It was listening all the time|none of that counted")
    )
    await expect(certificate).to_contain_text("on the same host atlas")
    await expect(certificate).not_to_contain_text("of the same build")
    await expect(certificate.locator(".gap:not(.silence)")).to_have_count(2)
    await expect(screen.page.locator(".t-bar.silence")).to_have_count(1)
    api.poll("heir")
    # The same session returns: the worker had been alive.
    api.beat("w", lease_duration="60s", session_id="s", sequence=3)
    await expect(certificate.locator(".verdict")).to_contain_text("FALSE. The same session came back")
    await expect(certificate.get_by_role("row").filter(has_text="photo-1")).to_contain_text("heir")
    await expect(screen.page.locator(".t-mark.return")).to_have_count(1)


async def test_a_worker_can_be_expired(screen: Screen, api: ApiClient) -> None:
    hold(api, "w", "photo-1", "photo-2")
    await screen.open_worker("w")
    await screen.button("Expire").click()
    await expect(screen.dialog).to_contain_text("the 2 activities it holds go to others")
    await screen.confirm("Expire", reason="looks stuck")
    await screen.shows_message("2 activities rescheduled")
    await expect(screen.page.locator(".badges")).to_contain_text("forced out: looks stuck")
    assert api.worker("w")["state"] == "WORKER_STATE_INACTIVE"
    await expect(screen.button("Expire")).to_be_disabled()


async def test_a_worker_can_be_paused_and_resumed(screen: Screen, api: ApiClient) -> None:
    api.beat("w", lease_duration="60s")
    await screen.open_worker("w")
    await screen.button("Pause").click()
    await screen.confirm("Pause", reason="deploy")
    await screen.shows_message("Paused.")
    await expect(screen.page.locator(".badges")).to_contain_text("paused")
    assert api.worker("w")["paused"]
    await screen.button("Resume").click()
    await screen.confirm("Resume")
    await screen.shows_message("Resumed.")
    await expect(screen.button("Pause")).to_be_visible()
    assert not api.worker("w")["paused"]


async def test_a_worker_can_be_drained_within_a_given_limit(screen: Screen, api: ApiClient) -> None:
    hold(api, "w", "photo-1")
    await screen.open_worker("w")
    await screen.button("Drain").click()
    await screen.confirm("Drain", limit="soon")
    await expect(screen.dialog.get_by_role("alert")).to_contain_text("a number of seconds above zero")
    await screen.confirm("Drain", limit="90", reason="old host")
    await screen.shows_message("It still holds 1 activity.")
    await expect(screen.page.locator(".badges")).to_contain_text("draining")
    worker = api.worker("w")
    assert worker["draining"]
    await expect(screen.page.locator(".facts")).to_contain_text("drain ends")


async def test_a_rejected_action_shows_the_reason_and_keeps_the_dialog(
    screen: Screen, api: ApiClient
) -> None:
    screen.refusals_expected = True
    api.beat("w", lease_duration="60s")
    await screen.open_worker("w")
    await screen.button("Drain").click()
    api.expire("w")  # someone else was faster
    await screen.confirm("Drain")
    await expect(screen.dialog.get_by_role("alert")).to_contain_text("This worker is not active")
    await screen.page.keyboard.press("Escape")
    await expect(screen.dialog).to_have_count(0)


async def test_no_action_runs_without_confirmation(screen: Screen, api: ApiClient) -> None:
    api.beat("w", lease_duration="60s")
    await screen.open_worker("w")
    for leave in ("Escape", "button", "beside"):
        await screen.button("Expire").click()
        if leave == "Escape":
            await screen.page.keyboard.press("Escape")
        elif leave == "button":
            await screen.dialog.get_by_role("button", name="Leave it").click()
        else:
            await screen.page.mouse.click(5, 5)
        await expect(screen.dialog).to_have_count(0)
        await expect(screen.button("Expire")).to_be_focused()
    assert api.worker("w")["state"] == "WORKER_STATE_ACTIVE"


async def test_an_unknown_worker_is_reported(screen: Screen, api: ApiClient) -> None:
    screen.refusals_expected = True
    await screen.open("worker", key="nobody")
    await expect(screen.page.get_by_role("alert")).to_contain_text(
        "The server does not know this worker any more."
    )


@pytest.mark.phone
async def test_the_page_fits_a_phone(screen: Screen, api: ApiClient) -> None:
    hold(api, "w-" + 60 * "x", "photo-1", host_name="h" * 100)
    api.expire("w-" + 60 * "x")
    await screen.open_worker("w-" + 60 * "x")
    await expect(screen.page.locator(".t-bar.absent")).to_have_count(1)
    assert not await screen.overflowing_elements()


async def test_activities_of_temporal_workers_link_to_their_workflows(screen: Screen, api: ApiClient) -> None:
    hold(api, "w", "order 7", labels={"temporal-ui": "https://ui.example"})
    await screen.open_worker("w")
    link = screen.row("order 7").get_by_role("link", name="in Temporal")
    run_id = activity("order 7")["run_id"]
    await expect(link).to_have_attribute(
        "href", f"https://ui.example/namespaces/{api.namespace}/workflows/order%207/{run_id}"
    )
    hold(api, "other", "order 8", labels={"temporal-ui": "javascript:alert(1)"})
    await screen.open_worker("other")
    await expect(screen.row("order 8")).to_be_visible()
    await expect(screen.page.get_by_role("link", name="in Temporal")).to_have_count(0)
