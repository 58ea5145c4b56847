"""A nightly batch: one activity for each customer and day, done once even if cron starts the batch several times.

The id of an activity names its work: "invoice/2026-01-31/ada". Scheduling the same id again changes nothing, so an
interrupted batch is simply started again. If a worker stops or dies, another one does its work.

    liveness serve                                      in one terminal
    python examples/cron_batch.py work                  in one or more others
    python examples/cron_batch.py run                   from cron: schedules today's invoices, waits, prints a summary
"""

import argparse
import asyncio
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from liveness import Client, Worker
from liveness.sdk import ActivityState, RetryLater, Task

QUEUE = "invoices"
CUSTOMERS = ("ada", "barbara", "donald", "edsger", "grace", "john", "leslie", "tony")


@dataclass
class Order:
    date: str
    customer: str


async def work(address: str, folder: Path) -> None:
    async with Worker(address, task_queue=QUEUE) as worker:

        @worker.activity("invoice")
        async def invoice(task: Task, order: Order) -> object:
            amount = 10 * len(order.customer)
            await asyncio.sleep(0.1)
            text = f"{order.date}: {order.customer} owes {amount}\n"
            try:
                # An earlier attempt may have written the file already: write the whole file, do not append.
                (folder / f"{order.date}-{order.customer}.txt").write_text(text)
            except OSError as error:
                raise RetryLater(f"no room for invoices: {error}", after=30) from error
            print(text, end="", flush=True)
            return {"amount": amount}

        await worker.run()  # until SIGTERM or Ctrl-C


async def run(address: str, date: str) -> int:
    async with Client(address) as client:
        jobs = [
            await client.schedule(
                "invoice",
                id=f"invoice/{date}/{customer}",
                input=Order(date, customer),
                task_queue=QUEUE,
            )
            for customer in CUSTOMERS
        ]
        done = await asyncio.gather(*(client.wait(job.ref) for job in jobs))
    good = [info for info in done if info.state is ActivityState.COMPLETED]
    for info in done:
        if info not in good:
            print(f"{info.id}: {info.state}, {info.last_failure}")
    new = sum(job.created for job in jobs)
    total = sum(info.json()["amount"] for info in good)
    print(f"{date}: {len(jobs)} invoices, {new} new, {len(good)} written, {total} in all")
    return 0 if len(good) == len(jobs) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["work", "run"])
    parser.add_argument("--address", default="127.0.0.1:7400")
    parser.add_argument("--date", default=datetime.now(UTC).date().isoformat())
    parser.add_argument("--folder", type=Path, default=Path(), help="where invoices are written")
    options = parser.parse_args()
    if options.part == "work":
        asyncio.run(work(options.address, options.folder))
    else:
        sys.exit(asyncio.run(run(options.address, options.date)))
