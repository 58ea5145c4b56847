"""A worker process that writes one note under a guard, and waits at a chosen point until it reads a line.

It prints `at the gate` when it stops there, and then `written`, `refused: ...` or `failed: ...`.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
import sys
from argparse import ArgumentParser, Namespace

from sqlalchemy import Connection, select
from sqlalchemy.exc import DBAPIError

from liveness.fencing import StaleToken
from tests.integration.fencing.fenced_database import (
    FencingToken,
    guard,
    notes,
    postgres_engine,
    put_note,
    sqlite_engine,
)


def wait_for_line() -> None:
    print("at the gate", flush=True)
    sys.stdin.readline()


def warm_up(connection: Connection) -> None:
    """Open the connection before the gate, as a worker in the middle of its work has it."""
    connection.execute(select(notes)).all()


def write(connection: Connection, options: Namespace) -> None:
    token = FencingToken(options.attempt, options.lease_epoch)
    if not options.unguarded:
        guard.check(connection, "report", token, options.text)
    if options.gate == "in transaction":
        wait_for_line()
    put_note(connection, "report", options.text)


def on_sqlite(options: Namespace) -> None:
    with sqlite_engine(options.url).connect() as connection:
        warm_up(connection)
        connection.rollback()
        if options.gate == "before":
            wait_for_line()
        with connection.begin():
            write(connection, options)


async def on_postgres(options: Namespace) -> None:
    limits = {"server_settings": {"idle_in_transaction_session_timeout": str(options.idle_ms_max)}}
    async with postgres_engine(options.url, connect_args=limits).connect() as connection:
        await connection.run_sync(warm_up)
        await connection.rollback()
        if options.gate == "before":
            wait_for_line()
        async with connection.begin():
            await connection.run_sync(write, options)


def main() -> None:
    # The kernel ends this process with its parent, even while it is stopped.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    parser = ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("attempt", type=int)
    parser.add_argument("lease_epoch", type=int)
    parser.add_argument("text")
    parser.add_argument("--gate", choices=["before", "in transaction", "none"], default="none")
    parser.add_argument("--idle-ms-max", type=int, default=0)
    parser.add_argument("--unguarded", action="store_true")
    options = parser.parse_args()
    try:
        if options.url.startswith("sqlite"):
            on_sqlite(options)
        else:
            asyncio.run(on_postgres(options))
    except StaleToken as refused:
        print(f"refused: {refused}")
    except (DBAPIError, OSError) as error:
        print(f"failed: {type(error).__name__}")
    else:
        print("written")


if __name__ == "__main__":
    main()
