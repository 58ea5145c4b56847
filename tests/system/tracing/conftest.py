"""A node and a frontend that export their traces to a collector."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

import pytest

from tests.free_ports import free_port
from tests.system.cli.server_processes import child_process, first_address, liveness_command
from tests.system.tracing.collector import Collector, collecting

_namespaces = count(1)


class TracedServers(NamedTuple):
    node: str
    frontend: str
    collector: Collector


@pytest.fixture(scope="session")
def traced_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TracedServers]:
    with pytest.MonkeyPatch.context() as patch, collecting() as collector:
        patch.setenv(
            "OTEL_BSP_SCHEDULE_DELAY", "20"
        )  # the processes export sooner than after the default of five seconds
        cluster_address = f"127.0.0.1:{free_port()}"
        serve = liveness_command(
            *("serve", "--listen", "127.0.0.1:0", "--shards", "4", "--traces", collector.url),
            *("--cluster-listen", cluster_address),
        )
        with child_process(serve, tmp_path_factory.mktemp("node")) as node:
            assert node.stdout is not None
            address, _ = first_address(node.stdout)
            carry = liveness_command(
                "frontend", "--nodes", cluster_address, "--listen", "127.0.0.1:0", "--traces", collector.url
            )
            with child_process(carry, tmp_path_factory.mktemp("frontend")) as frontend:
                assert frontend.stdout is not None
                yield TracedServers(address, first_address(frontend.stdout)[0], collector)


@pytest.fixture
def namespace() -> str:
    return f"namespace-{next(_namespaces)}"
