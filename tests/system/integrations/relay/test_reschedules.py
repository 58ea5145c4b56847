"""Reschedules are published to JetStream, also with a broker that is unavailable, full, wiped or strict."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from contextlib import closing
from pathlib import Path

import pytest
from nats.js.api import DiscardPolicy, StreamConfig

from liveness.domain.keys import shard_of
from liveness.integrations.relay.subjects import RescheduleSubject, subject_of
from liveness.v1 import admin_pb2
from tests.free_ports import free_port
from tests.system.cli.shell import Shell
from tests.system.integrations.relay.nats_servers import (
    STREAM,
    NatsServer,
    body,
    client_of,
    count,
    id_of,
    messages,
    one_server,
)
from tests.system.integrations.relay.relay_server import (
    NAMESPACE,
    bind,
    lose,
    relay_server,
    shut_down,
    states,
    status,
    tasks,
    until,
    until_done,
)
from tests.system.server.conftest import MakeServer


async def test_a_reschedule_arrives_once_with_everything_needed_to_run_it(
    make_server: MakeServer, tmp_path: Path
) -> None:
    async with one_server(tmp_path) as broker:
        server = relay_server(make_server, tmp_path, [broker])
        await server.start()
        names = await lose(server, "w", 3)
        await until_done(server, 3)
        found = await messages([broker])
        assert sorted(body(message)["activity_id"] for message in found) == sorted(names)
        for message in found:
            told = body(message)
            shard = shard_of(NAMESPACE, told["workflow_id"], 4)
            assert subject_of(message.subject) == RescheduleSubject(NAMESPACE, "resize", shard)
            assert id_of(message) == told["delivery"]
            assert told["attempt"] == 2
            assert told["token"] == b64encode(b"").decode()
            assert told["lost_from"] == {
                "worker_instance_key": "w",
                "lease_epoch": 1,
                "attempt": 1,
                "died": False,
            }
        shell = Shell(server.address, NAMESPACE)
        listed = await asyncio.to_thread(shell.json, "activities", "list")
        assert {one["state"] for one in listed} == {"ACTIVITY_STATE_HANDED_ON"}


async def test_reschedules_of_other_task_queues_are_not_relayed(
    make_server: MakeServer, tmp_path: Path
) -> None:
    async with one_server(tmp_path) as broker:
        server = relay_server(make_server, tmp_path, [broker], "--relay-queues", "orders/resize")
        await server.start()
        await lose(server, "w", 1, "resize")
        await lose(server, "v", 1, "print")
        await until_done(server, 2)
        assert [subject_of(message.subject)[1] for message in await messages([broker])] == ["resize"]


async def test_reschedules_wait_for_a_broker_that_starts_later(
    make_server: MakeServer, tmp_path: Path
) -> None:
    """One failed attempt would dead-letter them; waiting costs no attempt."""
    broker = NatsServer(tmp_path, "late")
    server = relay_server(make_server, tmp_path, [broker])
    await server.start()
    names = await lose(server, "w", 50)

    async def all_postponed() -> bool:
        return sum(shard.postponed_tasks for shard in (await status(server)).shards) == 50

    await until(all_postponed, "all wait for the broker")
    waiting = await tasks(server)
    assert {(task.state, task.attempts) for task in waiting} == {(admin_pb2.TASK_STATE_RETRYING, 0)}
    assert all("the broker is unavailable" in task.last_error for task in waiting)
    shell = Shell(server.address)
    shown = await asyncio.to_thread(shell.ok, "relay", "status")
    assert "messages wait" in shown
    assert broker.url in shown
    await broker.start()
    try:
        await until_done(server, 50)
        assert sorted(body(message)["activity_id"] for message in await messages([broker])) == sorted(names)
        told = await asyncio.to_thread(shell.json, "relay", "status")
        assert [connection["connected"] for connection in told["connections"]] == [True]
        assert {shard["postponed_tasks"] for shard in told["shards"]} == {"0"}
    finally:
        await broker.kill()


async def test_postponed_reschedules_survive_a_restart_and_run_locally_without_a_relay(
    make_server: MakeServer, tmp_path: Path
) -> None:
    server = relay_server(make_server, tmp_path, [NatsServer(tmp_path, "never")])
    await server.start()
    await lose(server, "w", 5)

    async def retrying() -> bool:
        return await states(server) == {"RETRYING"}

    await until(retrying, "all wait for the broker")
    await server.kill()
    server.flags = []
    await server.start()
    await until_done(server, 5)
    listed = await asyncio.to_thread(Shell(server.address, NAMESPACE).json, "activities", "list")
    assert {one["state"] for one in listed} == {"ACTIVITY_STATE_AVAILABLE"}


async def test_waiting_tasks_share_the_attempts_to_reach_a_broker(
    make_server: MakeServer, tmp_path: Path
) -> None:
    connections = 0

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        with closing(writer):
            pass

    listener = await asyncio.start_server(refuse, "127.0.0.1", 0)
    try:
        port = listener.sockets[0].getsockname()[1]
        server = make_server(
            f"sqlite:///{tmp_path / 'liveness.db'}", shards=4, flags=["--relay", f"nats://127.0.0.1:{port}"]
        )
        await server.start()
        for number in range(5):
            await lose(server, f"w{number}", 200)

        async def all_postponed() -> bool:
            return sum(shard.postponed_tasks for shard in (await status(server)).shards) == 1_000

        await until(all_postponed, "all wait for the broker")
        assert 0 < connections < 100
        await server.close()
    finally:
        listener.close()
        await listener.wait_closed()


async def test_a_replay_publishes_everything_again_to_a_broker_that_lost_its_disk(
    make_server: MakeServer, tmp_path: Path
) -> None:
    async with one_server(tmp_path) as broker:
        server = relay_server(make_server, tmp_path, [broker], "--relay-events")
        await server.start()
        names = await lose(server, "w", 120)
        other = await lose(server, "v", 3, "print")
        await until_done(server, 123)

        async def events_acknowledged() -> bool:
            return all(
                shard.backlog == 0 and shard.acknowledged_sequence >= shard.last_sequence
                for shard in (await status(server)).shards
            )

        await until(events_acknowledged, "all events acknowledged")
        before = {id_of(message) for message in await messages([broker])}
        await broker.kill()
        broker.wipe()
        await broker.start()
        shell = Shell(server.address)

        async def connected() -> bool:
            return (await status(server)).connections[0].connected

        await until(connected, "the broker is back")
        assert await count([broker]) == 0

        said = await asyncio.to_thread(
            shell.ok, "relay", "replay", "--since", "1h", "--namespace", NAMESPACE, "--task-queue", "print"
        )
        assert said == "Published again: 3 reschedules, of which the broker still had 0.\n"
        assert sorted(body(message)["activity_id"] for message in await messages([broker])) == sorted(other)
        nothing = await asyncio.to_thread(shell.json, "relay", "replay", "--since", "1h", "--namespace", "n")
        assert nothing == {"reschedules": "0", "events": "0", "duplicates": "0", "refused": "0"}

        done = await asyncio.to_thread(shell.json, "relay", "replay", "--since", "1h", "--events")
        assert (done["reschedules"], done["duplicates"]) == ("123", "3")
        await until(events_acknowledged, "all events acknowledged")
        found = await messages([broker])
        assert len(found) == len({id_of(message) for message in found})
        # A relay starts at the end of the log; a longer replay also publishes earlier events.
        assert before < {id_of(message) for message in found}
        older = [body(message)["type"] for message in found if id_of(message) not in before]
        assert older == ["ShardTaken"] * 4
        reschedules = [message for message in found if ".reschedules." in message.subject]
        assert sorted(body(message)["activity_id"] for message in reschedules) == sorted(names + other)

        again = await asyncio.to_thread(shell.json, "relay", "replay", "--since", "1h", "--events")
        assert int(again["duplicates"]) == int(again["reschedules"]) + int(again["events"]) == len(found)
        assert await count([broker]) == len(found)


async def test_a_replay_leaves_out_reschedules_of_earlier_attempts(
    make_server: MakeServer, tmp_path: Path
) -> None:
    """Another worker started the activity again and was lost, so the older message is outdated."""
    async with one_server(tmp_path) as broker:
        server = relay_server(make_server, tmp_path, [broker])
        await server.start()
        await lose(server, "w", 1)
        await until_done(server, 1)
        again = await bind(server, "w", 1)  # under a higher lease epoch
        await shut_down(server, "w")
        await until_done(server, 2)
        assert [body(message)["activity_id"] for message in await messages([broker])] == again * 2
        done = await asyncio.to_thread(Shell(server.address).json, "relay", "replay", "--since", "1h")
        assert (done["reschedules"], done["duplicates"]) == ("1", "1")


async def test_only_the_message_that_the_broker_refuses_is_dead_lettered(
    make_server: MakeServer, tmp_path: Path
) -> None:
    async with one_server(tmp_path, "max_payload: 700") as broker:
        server = relay_server(make_server, tmp_path, [broker])
        await server.start()
        names = await lose(server, "w", 5)
        await lose(server, "v", 1, token=bytes(1_000))

        async def settled() -> bool:
            return await states(server) == {"DONE", "DEAD_LETTERED"}

        await until(settled, "the large one is given up, the others are done")
        (dead,) = [task for task in await tasks(server) if task.state == admin_pb2.TASK_STATE_DEAD_LETTERED]
        assert "more than the broker accepts (700)" in dead.last_error
        assert sorted(body(message)["activity_id"] for message in await messages([broker])) == sorted(names)


async def test_a_full_stream_delays_reschedules_and_keeps_its_configuration(
    make_server: MakeServer, tmp_path: Path
) -> None:
    async with one_server(tmp_path) as broker:
        async with client_of([broker]) as client:
            await client.jetstream().add_stream(
                StreamConfig(name=STREAM, subjects=["liveness.>"], max_msgs=4, discard=DiscardPolicy.NEW)
            )
        server = relay_server(make_server, tmp_path, [broker])
        await server.start()
        names = await lose(server, "w", 10)

        async def full() -> bool:
            return await count([broker]) == 4 and await states(server) == {"DONE", "RETRYING"}

        await until(full, "the stream is full")
        assert any("maximum messages exceeded" in task.last_error for task in await tasks(server))
        async with client_of([broker]) as client:
            streams = client.jetstream()
            config = (await streams.stream_info(STREAM)).config
            assert (config.max_msgs, config.discard) == (4, DiscardPolicy.NEW)
            taken = [body(message)["activity_id"] for message in await messages([broker])]
            await streams.update_stream(config.evolve(max_msgs=1_000))
        await until_done(server, 10)
        assert len(taken) == 4
        assert sorted(body(message)["activity_id"] for message in await messages([broker])) == sorted(names)


async def test_a_server_killed_while_publishing_loses_and_doubles_no_message(
    make_server: MakeServer, tmp_path: Path
) -> None:
    """The server is killed as soon as the stream holds something; most of that is not marked as sent yet."""
    async with one_server(tmp_path) as broker:
        server = relay_server(make_server, tmp_path, [broker])
        await server.start()
        names: list[str] = []
        for number in range(2):
            names += await bind(server, f"w{number}", 500)
        for number in range(2):
            before = await count([broker])
            await shut_down(server, f"w{number}")

            async def some(before: int = before) -> bool:
                return await count([broker]) > before

            await until(some, "the first messages of this worker arrive")
            await server.kill()
            await server.start()
        await until_done(server, 1_000)
        found = await messages([broker])
        assert len(found) == len({id_of(message) for message in found}) == 1_000
        assert sorted(body(message)["activity_id"] for message in found) == sorted(names)


@pytest.mark.parametrize("where", ["nobody listens", "wrong password"])
async def test_credentials_are_never_shown(make_server: MakeServer, tmp_path: Path, where: str) -> None:
    secret = "hunter2-not-in-logs"
    async with one_server(tmp_path, "authorization { user: a, password: b }") as broker:
        port = broker.port if where == "wrong password" else free_port()
        server = make_server(
            f"sqlite:///{tmp_path / 'liveness.db'}",
            shards=1,
            flags=["--relay", f"nats://{secret}:{secret}@127.0.0.1:{port}", "--log-level", "debug"],
        )
        await server.start()
        await lose(server, "w", 1)

        async def failed() -> bool:
            return bool((await status(server)).connections[0].last_error)

        await until(failed, "the broker is unavailable")
        answer = await status(server)
        assert answer.connections[0].servers == [f"nats://***@127.0.0.1:{port}"]
        if where == "wrong password":
            assert "uthorization" in answer.connections[0].last_error
        assert secret not in server.log_text() + str(answer) + str(await tasks(server))
