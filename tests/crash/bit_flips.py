"""Flip bits in a SQLite database that no process has open."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random

ROWS = {
    "log": "payload",
    "workers": "payload",
    "checkpoints": "payload",
    "activities": "payload",
    "tasks": "activity",
}
"""The column that holds the payload, by table."""


def flip_in_row(path: Path, random: Random, table: str) -> str:
    """Flip one bit in the payload of a random row, and describe it."""
    column = ROWS[table]
    with closing(sqlite3.connect(path)) as connection:
        keys = [row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[5]]
        names = ", ".join(keys)
        rows = connection.execute(f"SELECT CAST({column} AS BLOB), {names} FROM {table}").fetchall()
        payload, *key = random.choice(rows)
        flipped = flip(payload, random)
        where = " AND ".join(f"{name} = ?" for name in keys)
        connection.execute(f"UPDATE {table} SET {column} = CAST(? AS TEXT) WHERE {where}", (flipped, *key))
        connection.commit()
    return f"{table} {key}: {payload!r} became {flipped!r}"


def flip_in_file(file: Path, random: Random, until: int | None = None) -> str:
    """Flip one bit of the file, or of its first `until` bytes, and describe it."""
    data = bytearray(file.read_bytes())
    at = random.randrange(until or len(data))
    bit = 1 << random.randrange(8)
    data[at] ^= bit
    file.write_bytes(data)
    return f"bit {bit} of byte {at} of {file.name}"


def last_commit(log: Path) -> int:
    """Return the offset at which the last commit begins in a write-ahead log.

    Damage after it looks like a torn commit.
    """
    data = log.read_bytes()
    frame_bytes = 24 + int.from_bytes(data[8:12])
    ends = [
        at + frame_bytes
        for at in range(32, len(data), frame_bytes)
        if data[at + 8 : at + 16] == data[16:24] and any(data[at + 4 : at + 8])
    ]
    return ends[-2]


def flip(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    changed[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(changed)
