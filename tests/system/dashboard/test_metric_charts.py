"""What a component reports is drawn on its page."""

from __future__ import annotations

import math
import time
from urllib.parse import quote

from playwright.async_api import expect

from tests.system.dashboard.screen import Screen
from tests.system.dashboard.server_and_workers import ApiClient

# The share of a chart's columns of pixels in which its first line is drawn.
COLUMNS_WITH_LINE = """canvas => {
  const [red, green, blue] = [0x0f, 0x76, 0x6e];
  const { data, width, height } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const near = (at) => Math.abs(data[at] - red) + Math.abs(data[at + 1] - green) + Math.abs(data[at + 2] - blue) < 90 && data[at + 3] > 100;
  const columns = new Set();
  for (let at = 0; at < width * height; at += 1) if (near(4 * at)) columns.add(at % width);
  return columns.size / width;
}"""


# The share of a chart's rows of pixels over which its first line stretches.
ROWS_WITH_LINE = """canvas => {
  const [red, green, blue] = [0x0f, 0x76, 0x6e];
  const { data, width, height } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const near = (at) => Math.abs(data[at] - red) + Math.abs(data[at + 1] - green) + Math.abs(data[at + 2] - blue) < 90 && data[at + 3] > 100;
  const rows = [];
  for (let at = 0; at < width * height; at += 1) if (near(4 * at)) rows.push(Math.floor(at / width));
  return (Math.max(...rows) - Math.min(...rows)) / height;
}"""


def report(api: ApiClient, key: str, minutes: int) -> None:
    now = time.time()
    samples = []
    for ago in range(minutes * 60, 0, -20):
        at = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now - ago))}
        wave = math.sin(ago / 300)
        samples += [
            {
                "name": "queue_depth",
                "value": 40 + 30 * wave,
                "labels": {"queue": "gpu"},
                "help": "Waiting jobs",
                **at,
            },
            {"name": "queue_depth", "value": 20 - 10 * wave, "labels": {"queue": "<b>cpu"}, **at},
            {"name": "drift", "value": wave / 100, "unit": "s", **at},
            {"name": "rows_total", "value": 1e6 - 50 * ago, "type": "COUNTER", "unit": "rows", **at},
        ]
    for start in range(0, len(samples), 1_000):
        api.post("metrics", {"worker_instance_key": key, "samples": samples[start : start + 1_000]})


async def test_reported_metrics_are_charts_on_the_page_of_the_worker(screen: Screen, api: ApiClient) -> None:
    api.beat("w", lease_duration="60s")
    api.beat("silent", lease_duration="60s")
    report(api, "w", 50)
    await screen.open_worker("w")
    section = screen.page.get_by_role("region", name="Reported metrics")
    await expect(section.locator("figcaption h3")).to_have_text(["drift", "queue_depth", "rows_total"])
    depth = section.locator("figure").filter(has_text="queue_depth")
    await expect(depth).to_contain_text("Waiting jobs")
    await expect(depth.get_by_role("button")).to_have_count(2)
    await expect(depth.get_by_role("button").last).to_contain_text("queue=<b>cpu")
    rows = section.locator("figure").filter(has_text="rows_total")
    await expect(rows).to_contain_text("rows per second")
    await expect(rows.get_by_role("button").locator("b")).to_have_text("50")
    # Every line lies within its chart, whose scale is that of its values.
    for figure in (depth, rows):
        assert await figure.locator("canvas").evaluate(COLUMNS_WITH_LINE) > 0.6
    await section.get_by_role("button", name="15 min").click()
    await expect(rows.get_by_role("button").locator("b")).to_have_text("50")
    await screen.open_worker("silent")
    await expect(screen.page.get_by_role("heading", name="About it")).to_be_visible()
    await expect(section).to_have_count(0)
    await screen.open_worker("w")
    await expect(depth).to_be_visible()


async def test_a_steady_counter_is_a_straight_line_whatever_the_steps(screen: Screen, api: ApiClient) -> None:
    """Its samples are 17 s apart, and the steps of the chart 20 s or 5 s long."""
    api.beat("w", lease_duration="60s")
    now = time.time()
    samples = [
        {"name": "rows_total", "value": 1e6 - 50 * ago, "type": "COUNTER", "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now - ago))}
        for ago in range(50 * 60, 0, -17)
    ]  # fmt: skip
    api.post("metrics", {"worker_instance_key": "w", "samples": samples})
    await screen.open_worker("w")
    figure = screen.page.get_by_role("region", name="Reported metrics").locator("figure")
    for name in ("1 h", "15 min"):
        await screen.page.get_by_role("button", name=name).click()
        await expect(figure.get_by_role("button").locator("b")).to_have_text("50")
        heights = await figure.locator("canvas").evaluate(ROWS_WITH_LINE)
        assert heights < 0.1, "all of the line is at one height"


async def test_a_component_page_has_the_charts_too(screen: Screen, api: ApiClient) -> None:
    key = "worker:discovery:0"
    api.beat("supervisor:discovery", lease_duration="60s", session_id="s")
    api.beat(key, lease_duration="60s", session_id="p")
    process = {
        "session_id": "p",
        "number": 1,
        "status": "COMPONENT_STATUS_STARTING",
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "wanted": True,
        "process_id": "7",
    }
    api.post(f"components/{quote(key)}/report", process)
    report(api, key, 5)
    await screen.open("component", key=key)
    section = screen.page.get_by_role("region", name="Reported metrics")
    await expect(section.locator("figcaption h3")).to_have_text(["drift", "queue_depth", "rows_total"])
