"""Web servers from elsewhere, unchanged: gunicorn tells its health by systemd's protocol, uvicorn is asked from outside."""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.request import urlopen

from liveness.domain.component import ComponentStatus
from tests.free_ports import free_port
from tests.system.supervisor.configuration import group
from tests.system.supervisor.supervised import LIMIT_S, Supervised, eventually, is_running

HEALTHY, FAILED, STOPPED = ComponentStatus.HEALTHY, ComponentStatus.FAILED, ComponentStatus.STOPPED

APPLICATION = """
def wsgi(environ, start_response):
    start_response("200 OK", [])
    return [b"here"]

async def asgi(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"here"})
"""


def gunicorn(port: int, application: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "gunicorn",
        "--bind",
        f"127.0.0.1:{port}",
        "--no-control-socket",
        application,
    ]


def workers_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_gunicorn_and_uvicorn_are_healthy_and_end_well(supervised: Supervised) -> None:
    folder = supervised.folder
    (folder / "application.py").write_text(APPLICATION)
    ports = [free_port(), free_port()]
    uvicorn = [
        sys.executable,
        "-m",
        "uvicorn",
        "--lifespan",
        "off",
        "--port",
        str(ports[1]),
        "application:asgi",
    ]
    check = {"interval": "100ms", "http": f"http://127.0.0.1:{ports[1]}/"}
    supervised.start_config(
        group(gunicorn(ports[0], "application:wsgi"), health="notify", directory=str(folder),
              snapshot_interval="1s")
        + group(uvicorn, "h", directory=str(folder), health="process",
                readiness__http=check["http"], readiness__interval=check["interval"])
    )  # fmt: skip
    first = supervised.when(HEALTHY, wanted=lambda each: "Gunicorn arbiter booted" in each.details_json)
    supervised.when(HEALTHY, group="h")
    for port in ports:
        with urlopen(f"http://127.0.0.1:{port}/", timeout=LIMIT_S) as answer:
            assert answer.read() == b"here"
    workers = eventually(lambda: workers_of(first.process_id), "gunicorn has no worker")
    assert supervised.end() == 0
    assert not any(map(is_running, workers))
    stopped = supervised.when(STOPPED)
    assert (stopped.last_exit.code, stopped.last_exit.signal) == (0, "")


def test_gunicorn_without_its_application_fails_with_its_own_exit_code(supervised: Supervised) -> None:
    supervised.start_config(
        group(gunicorn(free_port(), "no_such_application:wsgi"), restart__window_limit=1,
              restart__min_delay="10ms")
    )  # fmt: skip
    failed = supervised.when(FAILED)
    assert (failed.last_exit.code, failed.restart_count) == (3, 1)
    assert any("no_such_application" in line for line in failed.last_exit.last_lines)
    assert supervised.end() == 1
