"""The commands in the README and in docs/http.md do what the text says."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from liveness.http.errors import HTTP_CODES
from tests.system.http.test_process import serving

ROOT = Path(__file__).resolve().parents[3]
PAGES = ("README.md", "docs/http.md")
HTTP_PAGE = (ROOT / "docs/http.md").read_text(encoding="utf-8")
STREAM_SECONDS = "2"
TIMED_OUT = 28
"""curl's exit code for a stream that does not end by itself."""


def examples(page: str) -> list[list[str]]:
    text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
    return [shlex.split(line) for line in re.findall(r"^curl .*$", text, re.MULTILINE)]


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest) -> str:
    page: str = request.param
    return page


def test_every_example_works_in_the_order_of_the_page(page: str, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("there is no curl here")
    assert len(examples(page)) > 3
    with serving(tmp_path) as (_, client):
        for example in examples(page):
            words = [word.replace("127.0.0.1:7480", f"127.0.0.1:{client.port}") for word in example]
            streams = "-N" in words
            limit = ["--max-time", STREAM_SECONDS] if streams else ["--fail-with-body"]
            done = subprocess.run([*words, "--silent", *limit], capture_output=True, text=True, check=False)
            assert done.returncode == (TIMED_OUT if streams else 0), (words, done.stdout, done.stderr)
            if streams:
                assert "WorkerRegistered" in done.stdout
            else:
                assert isinstance(json.loads(done.stdout), dict | list)


def test_the_first_example_of_the_readme_registers_a_worker(tmp_path: Path) -> None:
    first = examples("README.md")[0]
    assert first[-1].endswith("/workers/worker-1/heartbeat")


def test_the_page_lists_the_status_codes() -> None:
    rows = re.findall(r"^\| (`[A-Z_`, ]+) \| ([0-9]{3})", HTTP_PAGE, re.MULTILINE)
    said = {name: int(code) for names, code in rows for name in re.findall(r"[A-Z_]+", names)}
    assert len(said) > 8
    assert said.items() <= {kind.name: code for kind, code in HTTP_CODES.items()}.items()


def test_the_page_names_every_error_reason_of_the_http_api() -> None:
    sources = (ROOT / "liveness/http").glob("*.py")
    reasons = {
        reason
        for source in sources
        for reason in re.findall(r'StatusCode\.[A-Z_]+,\s+"([A-Z_]+)"', source.read_text(encoding="utf-8"))
    }
    assert {"BODY_TOO_LARGE", "ORIGIN_NOT_ALLOWED", "PATH_NOT_FOUND"} <= reasons
    assert {reason for reason in reasons if reason not in HTTP_PAGE} == set()
