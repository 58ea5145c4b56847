"""A real browser on a real server. A browser error fails the test, and the last screenshot is kept."""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, async_playwright

from tests.system.dashboard.screen import Screen
from tests.system.dashboard.server_and_workers import ApiClient, ServerProcess, WebhookReceiver

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = (
    "--no-sandbox",  # root has no sandbox, and the browser opens only our own pages
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SCREENSHOTS = Path(__file__).resolve().parents[3] / "build" / "screenshots"


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
def receiver() -> Iterator[WebhookReceiver]:
    receiver = WebhookReceiver()
    yield receiver
    receiver.stop()


@pytest.fixture(scope="session")
def server(receiver: WebhookReceiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests; each test has its own namespace.

    Reschedules of the task queue `elsewhere` go to the receiver, and become dead letters when it rejects them.
    """
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
def api(server: ServerProcess, namespace: str) -> ApiClient:
    return ApiClient(server.url, namespace)


@pytest.fixture
async def screen(
    chromium: Browser, server: ServerProcess, namespace: str, request: pytest.FixtureRequest
) -> AsyncIterator[Screen]:
    """A page of the dashboard; the marks `phone` and `dark` choose its size and colours."""
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
    page_errors = await screen.page_errors()
    await context.close()
    assert not page_errors
