"""In a cluster of three real brokers, the stream's leader is killed under load, loses its disk and returns."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.crash.scale import scaled
from tests.system.integrations.relay.nats_servers import (
    all_current,
    body,
    id_of,
    leader,
    messages,
    three_servers,
)
from tests.system.integrations.relay.relay_server import bind, relay_server, shut_down, until, until_done
from tests.system.server.conftest import MakeServer

HELD = 200


async def storm(make_server: MakeServer, folder: Path, *, workers: int, kills: int) -> None:
    async with three_servers(folder) as brokers:
        server = relay_server(make_server, folder, brokers, "--relay-replicas", "3")
        await server.start()
        names: list[str] = []
        for number in range(workers):
            names += await bind(server, f"w{number}", HELD)
        await shut_down(server, "w0")
        await until_done(server, HELD)
        for kill in range(kills):
            # The loss of a second copy before the first is restored would be the brokers' fault.
            await until(lambda: all_current(brokers), "every broker has its copy")
            lost = await leader(brokers)
            first = 1 + kill * (workers - 1) // kills
            last = 1 + (kill + 1) * (workers - 1) // kills
            half = (first + last) // 2
            await asyncio.gather(*(shut_down(server, f"w{number}") for number in range(first, half)))
            await lost.kill()
            lost.wipe()
            await asyncio.gather(*(shut_down(server, f"w{number}") for number in range(half, last)))
            # With an empty disk, it must first copy the stream from the two others.
            await lost.start()
            await until_done(server, last * HELD)
        found = await messages(brokers)
        assert len(found) == len({id_of(message) for message in found}) == len(names)
        assert sorted(body(message)["activity_id"] for message in found) == sorted(names)


async def test_killing_and_wiping_the_leader_loses_and_doubles_no_message(
    make_server: MakeServer, tmp_path: Path
) -> None:
    await storm(make_server, tmp_path, workers=11, kills=1)


@pytest.mark.crash_long
async def test_killing_and_wiping_leader_after_leader_loses_and_doubles_no_message(
    make_server: MakeServer, tmp_path: Path
) -> None:
    await storm(make_server, tmp_path, workers=1 + 10 * scaled(6), kills=scaled(6))
