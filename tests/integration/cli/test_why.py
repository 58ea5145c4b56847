"""`liveness workers why`, on a server with a manual clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from liveness.testing import LocalServer
from tests.integration.engine.engine import activity, duration
from tests.system.cli.shell import Shell

LEASE_S = 30


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalServer]:
    """A local server whose clock starts at 15:06:40 on 2025-06-15."""
    with LocalServer(tmp_path) as server:
        yield server


@pytest.fixture
def shell(local: LocalServer) -> Shell:
    return Shell(local.address)


def beat(shell: Shell, key: str = "worker-7", **fields: Any) -> None:
    shell.heartbeat(key, **{"session_id": "s1", "lease_duration": duration(LEASE_S * 1_000), **fields})


def die(server: LocalServer, shell: Shell) -> None:
    """Send two heartbeats five seconds apart and let the lease expire; two other workers of the host die too."""
    held = [activity("charge"), activity("ship")]
    beat(shell, sequence=1, host_name="db-3", build_id="b7", task_queue="queue", bound_activities=held)
    server.advance(5)
    beat(shell, sequence=2, host_name="db-3", build_id="b7", task_queue="queue")
    for other in ("worker-8", "worker-9"):
        beat(shell, other, host_name="db-3")
    server.advance(LEASE_S)


def test_the_first_line_summarises_the_death(local: LocalServer, shell: Shell) -> None:
    die(local, shell)
    assert shell.ok("workers", "why", "worker-7").splitlines()[0] == (
        "worker-7 fell silent at 15:06:45.000Z: no heartbeat for 30.0 s of a 30s lease; "
        "2 others of host db-3 died with it; verdict: stands"
    )
    local.advance(12)
    beat(shell, sequence=3)
    assert (
        shell.ok("workers", "why", "worker-7")
        .splitlines()[0]
        .endswith("; verdict: FALSE, the same session came back 12.0 s later")
    )


def test_the_output_shows_heartbeats_concurrent_deaths_and_activities(
    local: LocalServer, shell: Shell
) -> None:
    die(local, shell)
    out = shell.ok("workers", "why", "worker-7")
    fields = {line.rpartition("  ")[0].strip(): line for line in out.splitlines()}
    assert "2025-06-15 15:07:15.000Z" in fields["died"]
    assert "LEASE_EXPIRED: no heartbeat for 30000 ms of a 30000 ms lease" in out
    assert "30s, epoch 1" in out
    assert "2 others in the namespace" in fields["died within a minute"]
    assert "last heartbeats:" in out
    beats = [line.split() for line in out.splitlines() if line.startswith("2025-06-15")]
    assert [line[1:] for line in beats] == [["15:06:40.000Z"], ["15:06:45.000Z", "5.0", "s"]]
    assert "server may have heard nothing" not in out
    moved = [line.split() for line in out.splitlines() if line.startswith("workflow-")]
    assert moved == [
        ["workflow-charge", "run", "charge", "1", "AVAILABLE", "2"],
        ["workflow-ship", "run", "ship", "1", "AVAILABLE", "2"],
    ]


def test_the_output_shows_a_stall_of_the_server(local: LocalServer, shell: Shell) -> None:
    beat(shell)
    node = local.server.node

    async def cause_stall() -> None:
        local.server._clock.move(60_000)  # type: ignore[attr-defined]
        node.tick()

    local._run_on_loop(cause_stall())
    local.advance(LEASE_S)
    out = shell.ok("workers", "why", "worker-7")
    [stall] = [line for line in out.splitlines() if "stood still" in line]
    assert stall.split()[:4] == ["2025-06-15", "15:06:40.000Z", "60.0", "s"]


def test_the_epoch_option_selects_one_of_several_deaths(local: LocalServer, shell: Shell) -> None:
    die(local, shell)
    beat(shell, sequence=3)
    local.advance(LEASE_S)
    assert shell.json("workers", "why", "worker-7")["lease_epoch"] == "2"
    first = shell.json("workers", "why", "worker-7", "--epoch", "1")
    assert (first["lease_epoch"], first["verdict"]) == ("1", "VERDICT_FALSE")
    assert shell.run("workers", "why", "worker-7", "--epoch", "0").exit_code == 2


def test_json_has_every_field(local: LocalServer, shell: Shell) -> None:
    die(local, shell)
    death = shell.json("workers", "why", "worker-7")
    assert death["company"] == {"same_host": 2, "same_build": 0, "same_namespace": 2}
    assert [beat.get("gap") for beat in death["heartbeats"]] == [None, "5s"]
    assert [moved["activity"]["activity_id"] for moved in death["activities"]] == ["charge", "ship"]
    assert (death["stalls"], death["activity_count"], death["verdict"]) == ([], 2, "VERDICT_STANDS")


def test_a_worker_without_a_death_gives_one_sentence(shell: Shell) -> None:
    not_found = "There is no worker worker-7 in namespace default (WORKER_NOT_FOUND)."
    assert shell.sentence("workers", "why", "worker-7") == not_found
    beat(shell)
    assert shell.sentence("workers", "why", "worker-7") == (
        "Worker worker-7 has not died, as far as its history is kept; it is ACTIVE (DEATH_NOT_FOUND)."
    )


def test_a_death_without_a_certificate_is_shown(local: LocalServer, shell: Shell) -> None:
    beat(shell)
    local.expire("worker-7")
    first = shell.ok("workers", "why", "worker-7").splitlines()[0]
    assert first.startswith("worker-7 fell silent at 15:06:40.000Z")
    assert first.endswith("; verdict: stands")


def test_markup_in_client_text_is_shown_literally(local: LocalServer, shell: Shell) -> None:
    beat(shell, "[red]w[/red]", host_name="[blink]:smile:")
    local.advance(LEASE_S)
    out = shell.ok("workers", "why", "[red]w[/red]")
    assert out.startswith("[red]w[/red] fell silent")
    assert "[blink]:smile:" in out


def test_every_command_shows_the_same_millisecond(local: LocalServer, shell: Shell) -> None:
    local.advance(0.123)
    die(local, shell)

    def line(command: str, *names: str) -> str:
        out = shell.ok("workers", command, "worker-7")
        return next(line for line in out.splitlines() if line.startswith(names))

    last_heartbeat, died = "2025-06-15 15:06:45.123Z", "2025-06-15 15:07:15.123Z"
    assert last_heartbeat in line("describe", "last heartbeat")
    assert last_heartbeat in line("why", "last heartbeat")
    assert died in line("why", "died")
    assert "worker-7 fell silent" in line("history", died)
    local.advance(3_600)
    assert last_heartbeat in line("describe", "last heartbeat")
