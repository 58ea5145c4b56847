"""The processes that the commands start are in the registry: a node, a frontend and a bridge, killed and stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from signal import SIGTERM

from liveness.v1.registry_pb2 import RegistryEntry
from tests.free_ports import next_node_port
from tests.integration.server.registry_client import RegistryClient
from tests.system.server.conftest import NO_TAKEOVER_GRACE, MakeServer
from tests.system.server.server_process import ROOT, ServerProcess, command, environment

WITHIN_S = 60
ON = {"LIVENESS_REGISTER_SELF": "on"}


async def until(
    server: ServerProcess, condition: Callable[[dict[str, RegistryEntry]], bool]
) -> dict[str, RegistryEntry]:
    """The own components by their label, once the condition holds."""
    client = RegistryClient(server.channel, "liveness")
    async with asyncio.timeout(WITHIN_S):
        while True:
            found = {entry.labels["component"]: entry for entry in (await client.page()).entries}
            if condition(found):
                return found
            await asyncio.sleep(0.05)


async def start(*arguments: str) -> asyncio.subprocess.Process:
    null = asyncio.subprocess.DEVNULL
    return await asyncio.create_subprocess_exec(
        *command(*arguments), cwd=ROOT, env=environment(ON), stdin=null, stdout=null, stderr=null
    )


async def test_each_kind_of_process_registers_and_leaves(make_server: MakeServer, sqlite_url: str) -> None:
    listen, cluster = (f"127.0.0.1:{next_node_port()}" for _ in range(2))
    flags = ("--listen", listen, "--cluster-listen", cluster)
    server = make_server(sqlite_url, environ={**ON, **NO_TAKEOVER_GRACE}, flags=flags)
    await server.start()
    first = (await until(server, lambda found: "node" in found))["node"]
    assert (first.kind, first.status, first.uri) == ("server_api", "ready", f"grpc://{listen}")
    await server.kill()
    await server.start()
    again = (
        await until(server, lambda found: "node" in found and found["node"].process_id != first.process_id)
    )["node"]
    assert (again.worker_instance_key, again.status, list(again.replicas)) == (
        first.worker_instance_key,
        "ready",
        [],
    )
    others = [
        await start("frontend", "--listen", f"127.0.0.1:{next_node_port()}", "--nodes", cluster),
        await start(
            "bridge", "temporal", "--upstream", "127.0.0.1:1", "--listen", f"127.0.0.1:{next_node_port()}",
            "--address", listen,
        ),
    ]  # fmt: skip
    found = await until(server, lambda found: len(found) == 3)
    assert {(name, entry.kind) for name, entry in found.items()} == {
        ("node", "server_api"),
        ("frontend", "server_api"),
        ("bridge", "broker"),
    }
    for process in others:
        process.send_signal(SIGTERM)
        assert await process.wait() == 0
    gone = await until(server, lambda found: found["bridge"].status == found["frontend"].status == "offline")
    assert gone["node"].status == "ready"
    assert await server.end(SIGTERM) == 0
    assert "Traceback" not in server.log_text()
