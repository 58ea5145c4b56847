"""Many rows in one statement.

The writer thread gives up the interpreter lock once per statement and waits to get it back; row-by-row execution
would pay that wait per row while the event loop is busy. Statement texts repeat, so that drivers keep them prepared.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any

from sqlalchemy import Connection, Table

LARGE = 256
MEDIUM = 64


def insert_rows(
    connection: Connection,
    table: Table,
    rows: Iterable[Sequence[Any]],
    columns: tuple[str, ...] | None = None,
    *,
    replace_on: tuple[str, ...] = (),
    add: bool = False,
) -> None:
    """INSERT rows given in column order; with `replace_on`, a row that exists is replaced or, with `add`, added to."""
    names = columns or tuple(column.name for column in table.columns)
    for chunk in _chunks(list(rows)):
        statement = _insert_text(table.name, names, len(chunk), replace_on, _style(connection), add=add)
        _execute(connection, statement, tuple(chain.from_iterable(chunk)))


def update_rows(
    connection: Connection,
    table: str,
    set_clause: str,
    where: str,
    rows: Iterable[Sequence[Any]],
    casts: tuple[str, ...],
) -> int:
    """UPDATE each row from its own values, named column1, column2, … in the clauses. Returns how many rows matched."""
    matched = 0
    for chunk in _chunks(list(rows)):
        statement = _update_text(table, set_clause, where, len(chunk), casts, _style(connection))
        matched += _execute(connection, statement, tuple(chain.from_iterable(chunk)))
    return matched


def _execute(connection: Connection, statement: str, values: tuple[Any, ...]) -> int:
    driver = connection.connection.driver_connection
    if isinstance(driver, sqlite3.Connection):
        # Straight to the driver: SQLAlchemy's own work per statement would be most of a small commit's.
        return driver.execute(statement, values).rowcount
    return connection.exec_driver_sql(statement, values).rowcount


def _chunks(rows: list[Sequence[Any]]) -> Iterator[list[Sequence[Any]]]:
    start = 0
    while (left := len(rows) - start) > 0:
        size = LARGE if left >= LARGE else min(left, MEDIUM)
        yield rows[start : start + size]
        start += size


def _style(connection: Connection) -> str:
    return connection.dialect.paramstyle


@cache
def _insert_text(
    table: str, names: tuple[str, ...], count: int, replace_on: tuple[str, ...], style: str, *, add: bool
) -> str:
    text = f"INSERT INTO {table} ({', '.join(names)}) VALUES {_values(count, ('',) * len(names), style)}"
    if replace_on:
        kept = ", ".join(
            f"{name} = {f'{table}.{name} + ' if add else ''}excluded.{name}"
            for name in names
            if name not in replace_on
        )
        text += f" ON CONFLICT ({', '.join(replace_on)}) DO UPDATE SET {kept}"
    return text


@cache
def _update_text(
    table: str, set_clause: str, where: str, count: int, casts: tuple[str, ...], style: str
) -> str:
    # Both databases call the columns of a bare VALUES list column1, column2, …
    return (
        f"UPDATE {table} SET {set_clause} FROM (VALUES {_values(count, casts, style)}) AS given WHERE {where}"
    )


def _values(count: int, casts: tuple[str, ...], style: str) -> str:
    numbers = iter(range(1, count * len(casts) + 1))

    def placeholder(cast: str) -> str:
        mark = f"${next(numbers)}" if style == "numeric_dollar" else "?"
        return f"CAST({mark} AS {cast})" if cast else mark

    return ", ".join(f"({', '.join(placeholder(cast) for cast in casts)})" for _ in range(count))
