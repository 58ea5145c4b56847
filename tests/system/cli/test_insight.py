"""`liveness tune` and `liveness incidents`, on workers that really fall silent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from liveness.v1.worker_pb2 import WorkerHeartbeat
from tests.system.cli.server_processes import running_server
from tests.system.cli.shell import Shell
from tests.system.sdk.server_process import until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with seven workers of one host that fell silent, and twenty of another that did not."""
    with running_server(tmp_path_factory.mktemp("insight")) as address:
        shop = Shell(address, "shop")
        for number in range(27):
            host, lease_s = ("web-1", 60) if number < 20 else ("db-3", 1)
            beat = WorkerHeartbeat(host_name=host, session_id=f"s-{number}")
            beat.lease_duration.FromSeconds(lease_s)
            shop.heartbeat(
                f"w-{number:02}", host_name=host, session_id=f"s-{number}", lease_duration=beat.lease_duration
            )
        Shell(address, "quiet").heartbeat("alone")
        until(lambda: len(shop.json("workers", "list", "--state", "inactive")) == 7)
        yield address


def test_an_incident_is_listed_and_described(server: str) -> None:
    shop = Shell(server, "shop")
    head, row = shop.ok("incidents", "list").splitlines()
    assert head.split()[:3] == ["incident", "began", "died"]
    assert "host db-3" in row
    assert "7 of 7" in row
    assert "0 of 20" in row
    [incident] = shop.json("incidents", "list", "-A")
    assert (incident["namespace"], incident["value"], incident["dead"]) == ("shop", "db-3", 7)
    described = shop.ok("incidents", "describe", incident["incident_id"])
    assert "Probably it is the host db-3: all of them had it, and 0 of the 20 that lived on." in described
    assert described.count("  w-2") == 7
    why = shop.ok("workers", "why", "w-20")
    assert "likely cause: host db-3" in why or "Probably it is the host db-3" in why
    assert "incident" in Shell(server, "quiet").run("incidents", "list").stderr
    assert shop.sentence("incidents", "describe", "17").startswith(
        "There is no incident 17 in namespace shop"
    )
    assert "is not the id of an incident" in shop.sentence("incidents", "describe", "yesterday")


def test_other_leases_are_shown_for_what_happened(server: str) -> None:
    out = Shell(server).ok("tune", "shop", "--lease", "5s", "--lease", "10s", "--storm-hold", "0")
    assert "7 leases of shop ended because nothing was heard, 0 of them of workers that were alive" in out
    lines = out.splitlines()
    [today] = [line for line in lines if "today: lease 1s" in line]
    assert today.startswith("→")
    [longer] = [line for line in lines if "lease 5s, storm_hold 0s" in line]
    assert "5 s" in longer
    answer = Shell(server, "shop").json("tune", "--range", "1h")
    assert answer["deaths"] == 7
    assert answer["reason"].startswith("Keep the lease of 1 s: a shorter one")
    refused = Shell(server).sentence("tune", "quiet")
    assert "too little history to tune namespace quiet: no workers died of silence within 7 days" in refused
    assert "give one of them" in Shell(server).sentence("tune", "shop", "-n", "other", exit_code=2)
    assert "'soon' is not" in Shell(server).run("tune", "shop", "--lease", "soon").stderr
