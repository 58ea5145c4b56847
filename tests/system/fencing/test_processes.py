"""A process is stopped, its activity is handed to another, and it resumes: with real processes, signals and databases."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from liveness.fencing import SeenToken
from tests.integration.fencing.fenced_database import SECONDS_MAX, FencedDatabase, guard, note

ROOT = Path(__file__).parents[3]

Start = Callable[..., Awaitable["HolderProcess"]]


class HolderProcess:
    """See `tests.system.fencing.holder_process`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._stdin, self._stdout = process.stdin, process.stdout

    async def next_line(self) -> str:
        async with asyncio.timeout(SECONDS_MAX):
            return (await self._stdout.readline()).decode().strip()

    def let_continue(self) -> None:
        self._stdin.write(b"go\n")

    async def stop(self) -> None:
        """Stop the process, and return when it has stopped."""
        self._process.send_signal(signal.SIGSTOP)
        async with asyncio.timeout(SECONDS_MAX):
            state = await asyncio.to_thread(
                os.waitid, os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT
            )
        assert state is not None
        assert state.si_code == os.CLD_STOPPED

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    async def end(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.communicate()


@pytest.fixture
async def start(database: FencedDatabase) -> AsyncIterator[Start]:
    started: list[HolderProcess] = []

    async def start(attempt: int, text: str, *options: str) -> HolderProcess:
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "tests.system.fencing.holder_process",
                database.url,
                str(attempt),
                "1",
                text,
                *options,
            ),
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


async def test_the_guard_refuses_the_late_write_of_a_stopped_process(
    database: FencedDatabase, start: Start
) -> None:
    zombie = await start(1, "zombie", "--gate=before")
    assert await zombie.next_line() == "at the gate"
    await zombie.stop()
    zombie.let_continue()  # it continues as if no time had passed

    second = await start(2, "second")
    assert await second.next_line() == "written"

    zombie.resume()
    assert await zombie.next_line() == (
        "refused: report was written with attempt 2, lease epoch 1 (second), so attempt 1, lease epoch 1 (zombie) "
        "comes too late: its holder was replaced and must stop."
    )
    assert await database.read_committed(note, "report") == "second"
    assert await database.read_committed(guard.newest, "report") == SeenToken(2, 1)


async def test_without_the_guard_a_late_write_destroys_the_data(
    database: FencedDatabase, start: Start
) -> None:
    """Proves that the test above can fail."""
    zombie = await start(1, "zombie", "--gate=before", "--unguarded")
    assert await zombie.next_line() == "at the gate"
    await zombie.stop()
    zombie.let_continue()
    second = await start(2, "second")
    assert await second.next_line() == "written"
    zombie.resume()
    assert await zombie.next_line() == "written"
    assert await database.read_committed(note, "report") == "zombie"


async def test_a_process_stopped_between_check_and_write_delays_the_next_holder(
    database: FencedDatabase, start: Start
) -> None:
    """Its write then comes before the other's: the order of the tokens is the order of the writes."""
    zombie = await start(1, "zombie", "--gate=in transaction")
    assert await zombie.next_line() == "at the gate"
    await zombie.stop()
    zombie.let_continue()

    second = await database.writer()
    takes_over = asyncio.create_task(second.run(guard.check, "report", SeenToken(2, 1)))
    await second.until_waiting()
    assert not takes_over.done()

    zombie.resume()
    assert await zombie.next_line() == "written"
    await takes_over
    assert await second.run(note, "report") == "zombie"


@pytest.mark.parametrize("dialect", ["postgresql"])
async def test_the_database_can_end_the_transaction_of_a_process_stopped_between_check_and_write(
    database: FencedDatabase, start: Start
) -> None:
    """With idle_in_transaction_session_timeout, the next holder does not wait for it."""
    zombie = await start(1, "zombie", "--gate=in transaction", "--idle-ms-max=100")
    assert await zombie.next_line() == "at the gate"
    await zombie.stop()
    zombie.let_continue()

    second = await start(2, "second")
    assert await second.next_line() == "written"

    zombie.resume()
    assert (await zombie.next_line()).startswith("failed: ")
    assert await database.read_committed(note, "report") == "second"
