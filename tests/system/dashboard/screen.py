"""The dashboard as a test sees it, and the errors that the browser reports."""

from __future__ import annotations

import asyncio
import re
from urllib.parse import urlencode

from playwright.async_api import ConsoleMessage, Locator, Page, Request, expect

# Generous, because a page on a busy machine is slow; only failing tests wait this long.
TIMEOUT_S = 40
expect.set_options(timeout=TIMEOUT_S * 1_000)

_NOTE_VIOLATIONS = """
  window.violations = [];
  document.addEventListener('securitypolicyviolation', (event) =>
    window.violations.push(`${event.violatedDirective}: ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`));
"""

_OVERFLOWING = """() => {
  const main = document.querySelector('main');
  const fits = (box) => box.scrollWidth <= box.clientWidth;
  if (fits(document.documentElement) && fits(main)) return [];
  const edge = main.getBoundingClientRect().right;
  const wide = [...main.querySelectorAll('*')].filter((node) => node.getBoundingClientRect().right > edge + 1);
  return ['page', ...wide.slice(0, 5).map((node) => `${node.tagName}.${node.className}`)];
}"""


class Screen:
    def __init__(self, page: Page, url: str, namespace: str) -> None:
        self.page = page
        self.url = url
        self.namespace = namespace
        self.refusals_expected = False
        """Whether the test makes the server refuse calls or stop, which the browser logs to its console."""
        self._page_errors: list[str] = []
        self._foreign_requests: list[str] = []

    async def prepare(self) -> None:
        self.page.set_default_timeout(TIMEOUT_S * 1_000)
        self.page.on("pageerror", lambda error: self._page_errors.append(str(error)))
        self.page.on("console", self._on_console)
        await self.page.add_init_script(_NOTE_VIOLATIONS)
        self.page.on("request", self._on_request)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type not in ("error", "warning"):
            return
        if self.refusals_expected and message.text.startswith("Failed to load resource"):
            return
        if message.text.startswith("Canvas2D: Multiple readback"):
            return  # tests read what charts have drawn; the page does not
        self._page_errors.append(message.text)

    def _on_request(self, request: Request) -> None:
        """Record a request to any other host, which is an error."""
        if not request.url.startswith((self.url, "data:")):
            self._foreign_requests.append(request.url)

    async def page_errors(self) -> list[str]:
        violations: list[str] = await self.page.evaluate("window.violations ?? []")
        return [*self._page_errors, *self._foreign_requests, *violations]

    # -- navigation

    async def open(self, view: str, **params: str) -> None:
        await self.page.goto(f"{self.url}#/{view}?{urlencode({'ns': self.namespace, **params})}")
        await expect(self.page.get_by_role("status").filter(has_text="live").first).to_be_visible()

    async def open_worker(self, key: str) -> None:
        await self.open("worker", key=key)
        await expect(self.page.locator("h1")).to_have_text(key)

    # -- content

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    def row(self, text: str) -> Locator:
        """Return a row of a table."""
        return self.page.get_by_role("row").filter(has_text=text)

    @property
    def dialog(self) -> Locator:
        return self.page.get_by_role("dialog")

    async def confirm(self, button: str, **fields: str) -> None:
        """Fill the confirmation dialog, and confirm."""
        for label, text in fields.items():
            await self.dialog.get_by_label(label.capitalize()).fill(text)
        await self.dialog.get_by_role("button", name=button, exact=True).click()

    async def shows_message(self, text: str | re.Pattern[str]) -> None:
        """Check that the result of an action is shown."""
        await expect(self.page.locator(".toast")).to_contain_text(text)
        await expect(self.dialog).to_have_count(0)

    async def until(self, condition: str) -> None:
        """Wait until a JavaScript condition holds, checked with every frame; an element in it may be missing for a
        while.
        """
        holds = f"() => {{ try {{ return {condition}; }} catch {{ return false; }} }}"
        look = f"() => new Promise((held) => {{ const holds = {holds}; const look = () => holds() ? held() : requestAnimationFrame(look); look(); }})"
        async with asyncio.timeout(TIMEOUT_S):
            await self.page.evaluate(look)

    async def overflowing_elements(self) -> list[str]:
        """Return the visible elements that are wider than the page."""
        found: list[str] = await self.page.evaluate(_OVERFLOWING)
        return found
