"""Impossible requests to a relay are answered in one sentence."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from random import Random

import pytest

from liveness.clock import SystemClock
from liveness.integrations.relay.broker import (
    Broker,
    BrokerConfig,
    BrokerDown,
    MessageRefused,
    NatsClientMissing,
)
from liveness.integrations.relay.subjects import reschedules_subject
from tests.system.cli.shell import Shell
from tests.system.integrations.relay.nats_servers import STREAM, NatsServer, one_server
from tests.system.integrations.relay.relay_server import (
    TIMEOUT_S,
    lose,
    relay_server,
    status,
    until,
    until_done,
)
from tests.system.server.conftest import MakeServer
from tests.system.server.server_process import run_to_end


async def test_a_server_without_a_relay_says_so(make_server: MakeServer, tmp_path: Path) -> None:
    server = relay_server(make_server, tmp_path, [])
    await server.start()
    shell = Shell(server.address)
    for command in (("relay", "status"), ("relay", "replay", "--since", "1h")):
        said = await asyncio.to_thread(shell.sentence, *command)
        assert said == "This server relays nothing; start it with --relay (RELAY_NOT_CONFIGURED)."


async def test_a_replay_of_events_that_are_not_relayed_is_refused(
    make_server: MakeServer, tmp_path: Path
) -> None:
    async with one_server(tmp_path) as broker:
        server = relay_server(make_server, tmp_path, [broker])
        await server.start()
        shell = Shell(server.address)
        said = await asyncio.to_thread(shell.sentence, "relay", "replay", "--since", "1h", "--events")
        assert said.endswith("start it with --relay-events (EVENTS_NOT_RELAYED).")


async def test_a_replay_to_an_unavailable_broker_fails_and_says_why(
    make_server: MakeServer, tmp_path: Path
) -> None:
    async with one_server(tmp_path) as broker:
        server = relay_server(make_server, tmp_path, [broker])
        await server.start()
        await lose(server, "w", 2)
        await until_done(server, 2)
        await broker.kill()

        async def away() -> bool:
            return not (await status(server)).connections[0].connected

        await until(away, "the broker is unavailable")
        said = await asyncio.to_thread(Shell(server.address).sentence, "relay", "replay", "--since", "1h")
        assert "after 0 were published: the broker is unavailable: " in said
        assert said.endswith("try again (BROKER_UNAVAILABLE).")


@pytest.mark.parametrize("since", ["", "0", "1 hour", "-1h"])
def test_a_replay_needs_a_start(since: str) -> None:
    result = Shell().run("relay", "replay", "--since", since)
    assert result.exit_code != 0


def test_a_missing_client_library_is_named_in_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = BrokerConfig(("nats://h",), ("nats://h",), "", "S", 1)
    with pytest.raises(NatsClientMissing, match=r"install nats-py\[nkeys\]"):
        Broker(place._replace(creds_file="x.creds"), SystemClock(), Random())
    monkeypatch.setitem(sys.modules, "nats", None)
    with pytest.raises(NatsClientMissing, match=r"install liveness\[nats\]"):
        Broker(place, SystemClock(), Random())


async def test_a_server_that_cannot_relay_does_not_start(tmp_path: Path) -> None:
    ended = await run_to_end(
        "serve", "--db", f"sqlite:///{tmp_path / 'x.db'}", "--listen", "127.0.0.1:0",
        "--relay", NatsServer(tmp_path, "any").url, "--relay-creds-file", "x.creds",
    )  # fmt: skip
    assert ended.code == 2
    assert ended.stderr == (
        "error: The server cannot relay: relay_creds_file needs the package nkeys; install nats-py[nkeys].\n"
    )


async def test_messages_to_the_broker_are_counted_by_outcome(tmp_path: Path) -> None:
    async with one_server(tmp_path) as nats:
        config = BrokerConfig((nats.url,), (nats.url,), "", STREAM, 1)
        broker, connected = Broker(config, SystemClock(), Random()), asyncio.Event()
        broker.on_connected.append(connected.set)
        running = asyncio.ensure_future(broker.run())
        try:
            await asyncio.wait_for(connected.wait(), TIMEOUT_S)
            subject = reschedules_subject("orders", "resize", 0)
            assert not await broker.publish(subject, "id", b"once")
            assert await broker.publish(subject, "id", b"once")
            with pytest.raises(MessageRefused):
                await broker.publish(subject, "too large", bytes(2_000_000))
            await nats.kill()
            with pytest.raises(BrokerDown):
                await broker.publish(subject, "later", b"x")
        finally:
            running.cancel()
            await asyncio.wait([running])
        assert broker.publishes == {"acknowledged": 1, "duplicate": 1, "refused": 1, "down": 1}
