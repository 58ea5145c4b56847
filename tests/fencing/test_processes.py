"""A process is stopped, its work moves on, and it wakes up: with real processes, signals and databases."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from liveness.fencing import SeenToken
from tests.fencing.places import SECONDS_MAX, Place, guard, note

ROOT = Path(__file__).parents[2]

Start = Callable[..., Awaitable["HolderProcess"]]


class HolderProcess:
    """See `tests.fencing.holder`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._stdin, self._stdout = process.stdin, process.stdout

    async def says(self) -> str:
        async with asyncio.timeout(SECONDS_MAX):
            return (await self._stdout.readline()).decode().strip()

    def open_the_gate(self) -> None:
        self._stdin.write(b"go\n")

    async def stop(self) -> None:
        """Return when it really stands still."""
        self._process.send_signal(signal.SIGSTOP)
        async with asyncio.timeout(SECONDS_MAX):
            state = await asyncio.to_thread(
                os.waitid, os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT
            )
        assert state is not None
        assert state.si_code == os.CLD_STOPPED

    def carry_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    async def end(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.communicate()


@pytest.fixture
async def start(place: Place) -> AsyncIterator[Start]:
    started: list[HolderProcess] = []

    async def start(attempt: int, text: str, *options: str) -> HolderProcess:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.fencing.holder", place.url, str(attempt), "1", text, *options),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        holder = HolderProcess(process)
        started.append(holder)
        return holder

    yield start
    for holder in started:
        await holder.end()


async def test_the_late_write_of_a_stopped_process_is_refused(place: Place, start: Start) -> None:
    zombie = await start(1, "zombie", "--gate=before")
    assert await zombie.says() == "at the gate"
    await zombie.stop()
    zombie.open_the_gate()  # it will go on as if no time had passed

    second = await start(2, "second")
    assert await second.says() == "written"

    zombie.carry_on()
    assert await zombie.says() == (
        "refused: report was written with attempt 2, lease epoch 1 (second), so attempt 1, lease epoch 1 (zombie) "
        "comes too late: its holder was replaced and must stop."
    )
    assert await place.look(note, "report") == "second"
    assert await place.look(guard.newest, "report") == SeenToken(2, 1)


async def test_without_the_guard_it_would_have_destroyed_the_data(place: Place, start: Start) -> None:
    """Shows that the test above tests something."""
    zombie = await start(1, "zombie", "--gate=before", "--unguarded")
    assert await zombie.says() == "at the gate"
    await zombie.stop()
    zombie.open_the_gate()
    second = await start(2, "second")
    assert await second.says() == "written"
    zombie.carry_on()
    assert await zombie.says() == "written"
    assert await place.look(note, "report") == "zombie"


async def test_a_process_stopped_between_check_and_write_holds_up_the_next_until_it_carries_on(
    place: Place, start: Start
) -> None:
    """Then its write comes before the other's, not after it: the order of the tokens is the order of the writes."""
    zombie = await start(1, "zombie", "--gate=in transaction")
    assert await zombie.says() == "at the gate"
    await zombie.stop()
    zombie.open_the_gate()

    second = await place.hand()
    takes_over = asyncio.create_task(second.run(guard.check, "report", SeenToken(2, 1)))
    await second.until_waiting()
    assert not takes_over.done()

    zombie.carry_on()
    assert await zombie.says() == "written"
    await takes_over
    assert await second.run(note, "report") == "zombie"


@pytest.mark.parametrize("dialect", ["postgresql"])
async def test_the_server_can_end_the_transaction_of_a_process_stopped_between_check_and_write(
    place: Place, start: Start
) -> None:
    """With idle_in_transaction_session_timeout the next holder need not wait for it."""
    zombie = await start(1, "zombie", "--gate=in transaction", "--idle-ms-max=100")
    assert await zombie.says() == "at the gate"
    await zombie.stop()
    zombie.open_the_gate()

    second = await start(2, "second")
    assert await second.says() == "written"

    zombie.carry_on()
    assert (await zombie.says()).startswith("failed: ")
    assert await place.look(note, "report") == "second"
