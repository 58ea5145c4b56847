"""A server that does not wait for the disk: `python -m tests.crash.unsynced_server serve OPTIONS`, like `liveness
serve`.

SYNCHRONOUS in the environment replaces SQLite's FULL. A test uses it to prove that the harness detects lost writes.
"""

from __future__ import annotations

import os
import sqlite3
from typing import Any

from liveness.cli import main


class UnsyncedConnection(sqlite3.Connection):
    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if statement == "PRAGMA synchronous=FULL":
            statement = f"PRAGMA synchronous={os.environ['SYNCHRONOUS']}"
        return super().execute(statement, *values)


if __name__ == "__main__":
    real = sqlite3.dbapi2.connect

    def connect(*args: Any, **options: Any) -> sqlite3.Connection:
        return real(*args, **{"factory": UnsyncedConnection, **options})

    for module in (sqlite3, sqlite3.dbapi2):
        setattr(module, "connect", connect)  # noqa: B010  # mypy sees overloads
    main(prog_name="liveness")
