"""Signing in and out of the dashboard of a server that asks who calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from tests.system.dashboard.screen import Screen
from tests.system.dashboard.server_and_workers import ServerProcess
from tests.system.supervisor.supervised import Supervised, program

NAMESPACE = "shop"


class GuardedServer(ServerProcess):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "--auth", "on")
        admin_file = folder / "admin-token"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LIVENESS_")}
        command = [
            sys.executable, "-P", "-m", "liveness.cli", "auth", "init", str(admin_file),
            "--db", f"sqlite:///{folder / 'liveness.db'}", "--shards", "16",
        ]  # fmt: skip
        subprocess.run(command, check=True, env=environment, capture_output=True)
        self._admin_token = admin_file.read_text().strip()
        self.log_file = folder / "server.log"

    def post(self, path: str, body: Any) -> Any:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._admin_token}"}
        host = self.url.removeprefix("http://").rstrip("/")
        with closing(HTTPConnection(host, timeout=60)) as connection:
            connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
        assert response.status == 200, answer
        return answer

    def create_token(self, principal: str, *grants: str) -> str:
        secret: str = self.post("/v1/tokens", {"principal": principal, "grants": grants})["secret"]
        return secret

    def beat(self, key: str) -> None:
        heartbeat = {"worker_instance_key": key, "session_id": "s", "lease_duration": "60s"}
        self.post(f"/v1/namespaces/{NAMESPACE}/worker/heartbeat", {"heartbeat": heartbeat})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedServer]:
    server = GuardedServer(tmp_path_factory.mktemp("sign-in"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def namespace() -> str:
    return NAMESPACE


async def sign_in(screen: Screen, token: str) -> None:
    await screen.page.get_by_label("Token").fill(token)
    await screen.button("Sign in").click()


async def test_a_reader_signs_in_sees_workers_but_no_actions_and_signs_out(
    screen: Screen, server: GuardedServer
) -> None:
    screen.refusals_expected = True
    token = server.create_token("rita", f"reader:{NAMESPACE}")
    server.beat("render-1")
    page = screen.page
    await page.goto(f"{server.url}#/workers")
    await sign_in(screen, "lvt_aaaaaaaaaaaa_" + "A" * 43)
    await expect(page.get_by_role("alert")).to_contain_text("does not accept this token")
    await expect(page.get_by_label("Token")).to_have_value("")
    await sign_in(screen, token)
    await expect(screen.row("render-1")).to_contain_text("active")
    await expect(page.locator(".person")).to_have_text("rita")

    cookies = await page.context.cookies()
    [kept] = [each for each in cookies if each["name"] == "__Host-liveness-session"]
    assert (kept["httpOnly"], kept["secure"], kept["sameSite"], kept["path"]) == (True, True, "Strict", "/")
    seen = await page.evaluate("[document.cookie, location.href, {...localStorage}, {...sessionStorage}]")
    assert "lvs_" not in str(seen)
    assert token[-43:] not in str(seen) + server.log_file.read_text()

    await screen.open_worker("render-1")
    await expect(screen.button("Expire")).to_have_count(0)
    await expect(screen.button("Pause")).to_have_count(0)
    await screen.open("overview")
    await expect(page.get_by_role("link", name=NAMESPACE, exact=True)).to_be_visible()
    await expect(screen.button("Pause all")).to_have_count(0)

    await screen.button("Sign out").click()
    await screen.dialog.get_by_role("button", name="In this browser", exact=True).click()
    await expect(page.get_by_label("Token")).to_be_visible()
    await expect(page.get_by_text("render-1")).to_have_count(0)
    assert "__Host-liveness-session" not in str(await page.context.cookies())


async def test_an_operator_acts_and_signing_out_elsewhere_asks_for_the_token_again(
    screen: Screen, server: GuardedServer
) -> None:
    screen.refusals_expected = True
    token = server.create_token("otto", "operator:*")
    server.beat("render-2")
    await screen.page.goto(f"{server.url}#/worker?ns={NAMESPACE}&key=render-2")
    await sign_in(screen, token)
    await screen.button("Pause").click()
    await screen.confirm("Pause")
    await screen.shows_message("Paused.")

    elsewhere = await screen.page.context.browser.new_context()  # type: ignore[union-attr]
    other = Screen(await elsewhere.new_page(), server.url, NAMESPACE)
    await other.page.goto(server.url)
    await sign_in(other, token)
    await other.button("Sign out").click()
    await other.dialog.get_by_role("button", name="Everywhere", exact=True).click()
    await expect(screen.page.get_by_label("Token")).to_be_visible()
    await elsewhere.close()


async def test_a_reader_sees_components_without_their_output_and_without_buttons(
    screen: Screen, server: GuardedServer, tmp_path: Path
) -> None:
    """Whoever may restart a component may read its output."""
    token_file = tmp_path / "token"
    token_file.write_text(server.create_token("supervisor", f"worker:{NAMESPACE}", f"reader:{NAMESPACE}"))
    token_file.chmod(0o600)
    supervised = Supervised(tmp_path, server.address, NAMESPACE)
    supervised.start("--token-file", str(token_file), "--name", "g", "--", *program("silent"))
    page = screen.page
    try:
        screen.refusals_expected = True
        await page.goto(f"{server.url}#/components?ns={NAMESPACE}")
        await sign_in(screen, server.create_token("rosa", f"reader:{NAMESPACE}"))
        group = page.get_by_role("region", name="Group g")
        await expect(screen.row("worker:g:0")).to_contain_text("healthy")
        await expect(group.get_by_role("button")).to_have_count(0)
        await group.get_by_role("link", name="worker:g:0", exact=True).click()
        await expect(page.locator("h1")).to_have_text("worker:g:0")
        await expect(page.get_by_text("Who may restart a component may read its output.")).to_be_visible()
        await expect(page.get_by_role("group", name="Actions")).to_have_count(0)
        await expect(screen.row("starting")).to_be_visible()
    finally:
        supervised.end()
        supervised.close()
