"""The dashboard's files and the endpoints beside the API."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from liveness.http.server import STATIC
from tests.integration.http.http_client import Client
from tests.integration.http.http_harness import HttpHarness

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
async def harness_with_files(stopped_harness: HttpHarness, tmp_path: Path) -> Client:
    folder = tmp_path / "static"
    for name in TYPES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"this is {name}")
    (tmp_path / "secret.txt").write_text("secret")
    await stopped_harness.open(static=folder)
    return stopped_harness.client


async def test_the_dashboard_is_served_at_the_root(client: Client) -> None:
    answer = await client.ask("GET", "/")
    assert (answer.code, answer.headers["content-type"]) == (200, TYPES["index.html"])
    assert answer.body == (STATIC / "index.html").read_bytes()


@pytest.mark.parametrize("name", TYPES)
async def test_each_file_has_its_content_type(harness_with_files: Client, name: str) -> None:
    answer = await harness_with_files.ask("GET", f"/static/{name}")
    assert (answer.code, answer.headers["content-type"]) == (200, TYPES[name])
    assert answer.body == f"this is {name}".encode()


async def test_cached_files_are_revalidated_by_etag(harness_with_files: Client) -> None:
    first = await harness_with_files.ask("GET", "/static/app.js")
    assert first.headers["cache-control"] == "no-cache"
    tag = first.headers["etag"]
    for known in (tag, f'"x", {tag}', f"W/{tag}", "*"):
        again = await harness_with_files.ask("GET", "/static/app.js", {"If-None-Match": known})
        assert (again.code, again.body, again.headers["etag"]) == (304, b"", tag)
    other = await harness_with_files.ask("GET", "/static/style.css", {"If-None-Match": tag})
    assert other.code == 200


async def test_head_requests_are_answered(harness_with_files: Client) -> None:
    answer = await harness_with_files.ask("HEAD", "/static/app.js")
    assert (answer.code, answer.headers["content-length"]) == (200, str(len("this is app.js")))


@pytest.mark.parametrize(
    "target",
    ["/static/../secret.txt", "/static/%2e%2e/secret.txt", "/static/..%2fsecret.txt", "/secret.txt", "/static/", "/static",
     "/static/vendor", "/static//app.js", "/static/app.js/", "/static/%00", "/static/....//secret.txt", "/../secret.txt",
     "/static/vendor/../../secret.txt", "//etc/passwd", "http://127.0.0.1/static/app.js"],
)  # fmt: skip
async def test_paths_outside_the_static_folder_are_not_served(
    harness_with_files: Client, target: str
) -> None:
    assert (await harness_with_files.ask("GET", target)).code == 404


async def test_health_and_readiness_are_reported(http_harness: HttpHarness) -> None:
    assert await http_harness.client.get("/healthz") == {"status": "SERVING"}
    assert await http_harness.client.get("/readyz") == {"status": "SERVING"}
    await http_harness.harness.server._health.enter_graceful_shutdown()
    answer = await http_harness.client.ask("GET", "/readyz")
    assert (answer.code, answer.json()) == (503, {"status": "NOT_SERVING"})
    assert (await http_harness.client.ask("GET", "/healthz")).code == 200


async def test_metrics_are_served_if_configured(stopped_harness: HttpHarness) -> None:
    await stopped_harness.open(
        metrics=lambda: (b"liveness_up 1\n", "text/plain; version=0.0.4; charset=utf-8")
    )
    answer = await stopped_harness.client.ask("GET", "/metrics")
    assert (answer.code, answer.body) == (200, b"liveness_up 1\n")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert (await stopped_harness.client.ask("GET", "/metrics", {"Host": "evil.example"})).code == 421


async def test_internal_errors_are_only_in_the_log(stopped_harness: HttpHarness) -> None:
    def broken() -> tuple[bytes, str]:
        raise RuntimeError("the secret is 1234")

    with structlog.testing.capture_logs() as logs:
        await stopped_harness.open(metrics=broken)
        answer = await stopped_harness.client.ask("GET", "/metrics")
    assert (answer.code, answer.error["status"], answer.error["reason"]) == (500, "INTERNAL", "INTERNAL")
    assert b"1234" not in answer.body
    assert "content-security-policy" in answer.headers
    (entry,) = (each for each in logs if each["event"] == "HTTP request failed")
    assert "1234" in str(entry["exc_info"])
    assert (await stopped_harness.client.ask("GET", "/healthz")).code == 200
