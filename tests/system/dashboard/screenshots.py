"""Take the screenshots in docs/images: `python -m tests.system.dashboard.screenshots [NAME…]`.

They show two minutes of an invented fleet, and of supervised processes that are real. Names: only these.
"""

from __future__ import annotations

import asyncio
import random
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

from playwright.async_api import async_playwright

from tests.system.dashboard.conftest import ARGUMENTS, CHROMIUM
from tests.system.dashboard.server_and_workers import ApiClient, ServerProcess, WorkerFleet
from tests.system.supervisor.supervised import Supervised, kill, program

IMAGES = Path(__file__).resolve().parents[3] / "docs" / "images"
SECONDS = 110
NAMESPACES = {"billing": 64, "media": 240, "search": 90}
QUEUES = {
    "billing": ("invoices", "reminders"),
    "media": ("photos", "films", "thumbnails"),
    "search": ("index",),
}
LOST_HOST = "media-fra-0042"
GROUP = f"""
[group.discovery]
command = {shlex.join(program("counting"))!r}
processes = 3
snapshot_interval = "1s"
"""
COMPONENT = "worker:discovery:1"


class Fleet:
    def __init__(self, server: ServerProcess, supervised: Supervised) -> None:
        self._supervised = supervised
        self._chance = random.Random(17)
        self._server = server
        self.worker_fleets = {
            name: WorkerFleet(server.address, list(self._workers(name, number)), 1.0, name)
            for name, number in NAMESPACES.items()
        }
        self.apis = {name: ApiClient(server.url, name) for name in NAMESPACES}

    def _workers(self, namespace: str, number: int) -> Iterator[dict[str, Any]]:
        for at in range(number):
            zone = ("fra", "iad", "sin")[at % 3]
            yield {
                "worker_instance_key": f"{namespace}-{zone}-{at:04d}",
                "session_id": self._session(),
                "lease_duration": f"{4 if namespace == 'search' else self._chance.choice((5, 8, 15))}s",
                "task_queue": self._chance.choice(QUEUES[namespace]),
                "build_id": self._chance.choice(("2026.11.3", "2026.11.3", "2026.11.4-rc1")),
                "host_name": f"{zone}-{at % 9:02d}.example.net",
                "process_id": str(4_000 + at),
                "sdk_name": "liveness-python",
                "sdk_version": "0.1.0",
                "status": "WORKER_STATUS_RUNNING",
                "successes": "3",
            }

    def _session(self) -> str:
        return f"{self._chance.randrange(16**8):08x}"

    def run(self) -> None:
        """Let workers die and return, activities move on, and at last a rack fail."""
        for worker_fleet in self.worker_fleets.values():
            worker_fleet.start()
        media, worker_fleet = self.apis["media"], self.worker_fleets["media"]
        for number in range(90):
            media.schedule(f"album-{number:03d}")
        others = [key for key in worker_fleet.keys if key != LOST_HOST]
        for key in (LOST_HOST, *self._chance.sample(others, 30)):
            worker_fleet.confirm_tasks(key, media.poll(key, 3))
        silent: list[tuple[float, Any]] = []
        lost, unlucky = False, False
        began = time.monotonic()
        while (passed := time.monotonic() - began) < SECONDS:
            time.sleep(1.5)
            self._come_back(silent, passed)
            key = self._chance.choice([key for key in worker_fleet.keys if key != LOST_HOST])
            silent.append((passed + self._chance.choice((6, 20)), worker_fleet.fall_silent(key)))
            if passed > 45 and not unlucky:
                unlucky = True
                self._kill_component()
                silent.append((passed + 25, worker_fleet.fall_silent(LOST_HOST)))
                media.post("workers/pause", {"worker_instance_key": "media-iad-0001", "reason": "upgrade"})
            if passed > SECONDS - 15 and not lost:
                lost = True
                self._kill_component()
                for key in [key for key in self.worker_fleets["search"].keys if "fra" in key or "iad" in key]:
                    self.worker_fleets["search"].fall_silent(key)
            self._work(media, worker_fleet)

    def _kill_component(self) -> None:
        component = self._supervised.component(int(COMPONENT[-1]), "discovery")
        assert component is not None
        kill(component)

    def _work(self, media: ApiClient, worker_fleet: WorkerFleet) -> None:
        """Let other workers take up the activities of the dead."""
        key = self._chance.choice(worker_fleet.keys)
        worker_fleet.confirm_tasks(key, media.poll(key, 2, wait_s=0.1))

    def _come_back(self, silent: list[tuple[float, Any]], passed: float) -> None:
        for at, beat in [one for one in silent if one[0] <= passed]:
            silent.remove((at, beat))
            if self._chance.random() < 0.5 and beat.worker_instance_key != LOST_HOST:
                beat.session_id, beat.sequence = self._session(), 0
            del beat.bound_activities[:]
            self.worker_fleets["media"].rejoin(beat)

    def end(self) -> None:
        for worker_fleet in self.worker_fleets.values():
            worker_fleet.stop()


SCREENSHOTS: tuple[tuple[str, str, dict[str, str], int, Literal["light", "dark"]], ...] = (
    ("dashboard", "overview", {"range": "5"}, 1_060, "light"),
    ("dashboard-workers", "workers", {"ns": "media", "q": "fra"}, 700, "light"),
    ("dashboard-worker", "worker", {"ns": "media", "key": LOST_HOST}, 1_060, "dark"),
    ("dashboard-component", "component", {"ns": "media", "key": COMPONENT}, 1_060, "light"),
)


async def take_screenshots(url: str, names: Sequence[str]) -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        for name, view, params, height, colours in SCREENSHOTS:
            if names and name not in names:
                continue
            page = await browser.new_page(viewport={"width": 1_400, "height": height}, color_scheme=colours)
            await page.goto(f"{url}#/{view}?{urlencode(params)}")
            await page.wait_for_timeout(4_000)
            await page.screenshot(path=IMAGES / f"{name}.png")
        await browser.close()


def main() -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = ServerProcess(folder, TAKEOVER_GRACE_MS="0").start()
        stack.callback(server.stop)
        supervised = Supervised(folder, server.address, "media")
        stack.callback(supervised.close)
        supervised.start_config(GROUP)
        stack.callback(supervised.end)
        fleet = Fleet(server, supervised)
        stack.callback(fleet.end)
        fleet.run()
        asyncio.run(take_screenshots(server.url, sys.argv[1:]))


if __name__ == "__main__":
    main()
