"""The dashboard's files, and what lies beside the API."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from liveness.http.face import STATIC
from tests.http.client import Client
from tests.http.house import House

TYPES = {
    "index.html": "text/html; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "mark.svg": "image/svg+xml",
    "vendor/chart.mjs": "text/javascript; charset=utf-8",
    "vendor/font.woff2": "font/woff2",
    "vendor/LICENSE.txt": "text/plain; charset=utf-8",
    "strange.xyzzy": "application/octet-stream",
}


@pytest.fixture
async def furnished(plot: House, tmp_path: Path) -> Client:
    folder = tmp_path / "static"
    for name in TYPES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"this is {name}")
    (tmp_path / "secret.txt").write_text("secret")
    await plot.open(static=folder)
    return plot.client


async def test_the_dashboard_is_at_the_root(client: Client) -> None:
    answer = await client.ask("GET", "/")
    assert (answer.code, answer.headers["content-type"]) == (200, TYPES["index.html"])
    assert answer.body == (STATIC / "index.html").read_bytes()


@pytest.mark.parametrize("name", TYPES)
async def test_each_file_says_what_it_is(furnished: Client, name: str) -> None:
    answer = await furnished.ask("GET", f"/static/{name}")
    assert (answer.code, answer.headers["content-type"]) == (200, TYPES[name])
    assert answer.body == f"this is {name}".encode()


async def test_a_copy_is_used_again_only_while_it_is_the_same(furnished: Client) -> None:
    first = await furnished.ask("GET", "/static/app.js")
    assert first.headers["cache-control"] == "no-cache"
    tag = first.headers["etag"]
    for known in (tag, f'"x", {tag}', f"W/{tag}", "*"):
        again = await furnished.ask("GET", "/static/app.js", {"If-None-Match": known})
        assert (again.code, again.body, again.headers["etag"]) == (304, b"", tag)
    other = await furnished.ask("GET", "/static/style.css", {"If-None-Match": tag})
    assert other.code == 200


async def test_the_head_alone_can_be_asked_for(furnished: Client) -> None:
    answer = await furnished.ask("HEAD", "/static/app.js")
    assert (answer.code, answer.headers["content-length"]) == (200, str(len("this is app.js")))


@pytest.mark.parametrize(
    "target",
    ["/static/../secret.txt", "/static/%2e%2e/secret.txt", "/static/..%2fsecret.txt", "/secret.txt", "/static/", "/static",
     "/static/vendor", "/static//app.js", "/static/app.js/", "/static/%00", "/static/....//secret.txt", "/../secret.txt",
     "/static/vendor/../../secret.txt", "//etc/passwd", "http://127.0.0.1/static/app.js"],
)  # fmt: skip
async def test_nothing_else_is_served(furnished: Client, target: str) -> None:
    assert (await furnished.ask("GET", target)).code == 404


async def test_whether_the_process_answers_and_is_ready_is_told(house: House) -> None:
    assert await house.client.get("/healthz") == {"status": "SERVING"}
    assert await house.client.get("/readyz") == {"status": "SERVING"}
    await house.site.server._health.enter_graceful_shutdown()
    answer = await house.client.ask("GET", "/readyz")
    assert (answer.code, answer.json()) == (503, {"status": "NOT_SERVING"})
    assert (await house.client.ask("GET", "/healthz")).code == 200


async def test_metrics_are_shown_if_there_are_any(plot: House) -> None:
    await plot.open(metrics=lambda: (b"liveness_up 1\n", "text/plain; version=0.0.4; charset=utf-8"))
    answer = await plot.client.ask("GET", "/metrics")
    assert (answer.code, answer.body) == (200, b"liveness_up 1\n")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert (await plot.client.ask("GET", "/metrics", {"Host": "evil.example"})).code == 421


async def test_what_goes_wrong_inside_is_told_in_the_log_only(plot: House) -> None:
    def broken() -> tuple[bytes, str]:
        raise RuntimeError("the secret is 1234")

    with structlog.testing.capture_logs() as logs:
        await plot.open(metrics=broken)
        answer = await plot.client.ask("GET", "/metrics")
    assert (answer.code, answer.error["status"], answer.error["reason"]) == (500, "INTERNAL", "INTERNAL")
    assert b"1234" not in answer.body
    assert "content-security-policy" in answer.headers
    (entry,) = (each for each in logs if each["event"] == "HTTP request failed")
    assert "1234" in str(entry["exc_info"])
    assert (await plot.client.ask("GET", "/healthz")).code == 200
