"""examples/cron_batch.py"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from liveness import Client
from tests.system.examples.conftest import Start
from tests.system.examples.programs import SECONDS_MAX

CUSTOMERS = 8


def invoices(folder: Path) -> dict[str, str]:
    return {path.stem: path.read_text() for path in folder.glob("2026-*.txt")}


def test_the_second_run_creates_nothing_new(start: Start, tmp_path: Path) -> None:
    worker = start("cron_batch.py", "work")

    first = start("cron_batch.py", "run", "--date", "2026-01-31").wait_success()
    written = invoices(tmp_path)
    second = start("cron_batch.py", "run", "--date", "2026-01-31").wait_success()

    assert first == ["2026-01-31: 8 invoices, 8 new, 8 written, 410 in all"]
    assert second == ["2026-01-31: 8 invoices, 0 new, 8 written, 410 in all"]
    assert len(written) == CUSTOMERS
    assert written["2026-01-31-ada"] == "2026-01-31: ada owes 30\n"
    assert invoices(tmp_path) == written
    worker.signal(signal.SIGTERM)
    assert sorted(worker.wait_success()) == sorted(text.rstrip() for text in written.values())


def test_another_day_is_another_batch(start: Start, tmp_path: Path) -> None:
    start("cron_batch.py", "work")
    start("cron_batch.py", "run", "--date", "2026-02-27").wait_success()

    (line,) = start("cron_batch.py", "run", "--date", "2026-02-28").wait_success()

    assert line == "2026-02-28: 8 invoices, 8 new, 8 written, 410 in all"
    assert len(invoices(tmp_path)) == 2 * CUSTOMERS


async def test_the_next_run_completes_a_killed_batch(start: Start, address: str) -> None:
    interrupted = start("cron_batch.py", "run", "--date", "2026-03-31")
    async with Client(address) as client, asyncio.timeout(SECONDS_MAX):
        while sum("2026-03-31" in info.id for info in await client.list(task_queue="invoices")) < CUSTOMERS:
            await asyncio.sleep(0.02)
    interrupted.signal(signal.SIGKILL)
    start("cron_batch.py", "work")

    (line,) = await asyncio.to_thread(start("cron_batch.py", "run", "--date", "2026-03-31").wait_success)

    assert line == "2026-03-31: 8 invoices, 0 new, 8 written, 410 in all"
