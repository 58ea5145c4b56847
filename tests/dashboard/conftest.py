"""A real browser on a real server. Whatever a page complains about fails its test; how it looked in the end is kept."""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, async_playwright

from tests.dashboard.screen import Screen
from tests.dashboard.stage import Api, Receiver, ServerProcess

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = (
    "--no-sandbox",  # it has none when started by root, and shows nothing but our own pages
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SCREENSHOTS = Path(__file__).resolve().parents[2] / "build" / "screenshots"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One browser at a time: all these tests go to the same process."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.xdist_group("browser"))


@pytest.fixture(scope="session")
async def chromium() -> AsyncIterator[Browser]:
    if CHROMIUM is None:
        pytest.skip(
            "no chromium here to look at the dashboard with; install it, e.g. apt-get install chromium"
        )
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield browser
        await browser.close()


@pytest.fixture(scope="session")
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.stop()


@pytest.fixture(scope="session")
def server(receiver: Receiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """For all tests; each has a namespace of its own. Reschedules of the task queue `elsewhere` go to the receiver,
    and are dead letters when it does not take them."""
    server = ServerProcess(
        tmp_path_factory.mktemp("dashboard"),
        "--webhook-url", receiver.url, "--webhook-queues", "*/elsewhere",
        WEBHOOK_SECRET="a secret of these tests", TASK_ATTEMPTS_MAX="1", TAKEOVER_GRACE_MS="0",
    )  # fmt: skip
    server.start()
    yield server
    server.stop()


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> str:
    return re.sub(r"\W+", "-", request.node.name.removeprefix("test_")).strip("-")[:60]


@pytest.fixture
def api(server: ServerProcess, namespace: str) -> Api:
    return Api(server.url, namespace)


@pytest.fixture
async def screen(
    chromium: Browser, server: ServerProcess, namespace: str, request: pytest.FixtureRequest
) -> AsyncIterator[Screen]:
    """A page of the dashboard; the mark `phone` or `dark` says how it is looked at."""
    phone = request.node.get_closest_marker("phone") is not None
    dark = request.node.get_closest_marker("dark") is not None
    context = await chromium.new_context(
        viewport={"width": 390, "height": 844} if phone else {"width": 1400, "height": 900},
        has_touch=phone,
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
    )
    screen = Screen(await context.new_page(), server.url, namespace)
    await screen.prepare()
    yield screen
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    await screen.page.screenshot(path=SCREENSHOTS / f"{request.node.path.stem}-{namespace}.png")
    complaints = await screen.complaints()
    await context.close()
    assert not complaints
