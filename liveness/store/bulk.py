"""Write and read many rows per statement.

The writer thread releases the interpreter lock once per statement and waits to get it back; row-by-row execution would pay
that wait per row while the event loop is busy. Statement texts repeat, so that drivers keep them prepared.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain, islice
from typing import Any

from sqlalchemy import Connection, Select, Table

LARGE_CHUNK_ROWS = 256
MEDIUM_CHUNK_ROWS = 64
FETCH_ROWS = 2_000


def insert_rows(
    connection: Connection,
    table: Table,
    rows: Iterable[Sequence[Any]],
    columns: tuple[str, ...] | None = None,
    *,
    replace_on: tuple[str, ...] = (),
    keep_columns: tuple[str, ...] = (),
    add: bool = False,
    constant_columns: tuple[tuple[str, str], ...] = (),
) -> None:
    """INSERT rows given in column order.

    `replace_on`: the key columns by which an existing row is replaced, except in its `keep_columns`; with `add`, the values
    are added to the existing ones instead. `constant_columns`: columns with the same value in all rows, as SQL.
    Rows are consumed lazily: allocating memory for a hundred thousand at once costs more than filling it.
    """
    names = columns
    for chunk in _chunks(rows):
        # Asked only if there are rows: most commits have none for most tables.
        names = names or _column_names(table)
        statement = _insert_text(
            table.name,
            names,
            len(chunk),
            replace_on,
            keep_columns,
            _param_style(connection),
            constant_columns,
            add=add,
        )
        _execute(connection, statement, tuple(chain.from_iterable(chunk)))


@cache
def _column_names(table: Table) -> tuple[str, ...]:
    return tuple(column.name for column in table.columns)


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
    for chunk in _chunks(rows):
        statement = _update_text(table, set_clause, where, len(chunk), casts, _param_style(connection))
        matched += _execute(connection, statement, tuple(chain.from_iterable(chunk)))
    return matched


def read_rows(connection: Connection, query: Select[Any]) -> Iterator[Any]:
    """Fetch thousands of rows at a time: a million, fetched one by one, take seconds longer."""
    driver = connection.connection.driver_connection
    if isinstance(driver, sqlite3.Connection):
        cursor = driver.execute(str(query.compile(connection, compile_kwargs={"literal_binds": True})))
        while fetched := cursor.fetchmany(FETCH_ROWS):
            yield from fetched
    else:
        for partition in connection.execute(query).partitions(FETCH_ROWS):
            yield from partition


def find_rows(
    connection: Connection, table: Table, key_columns: tuple[str, ...], keys: Iterable[Sequence[Any]]
) -> Iterator[Any]:
    """SELECT the rows with these keys, as tuples in column order.

    A join, and in this order: for `(a, b) IN (VALUES …)`, SQLite reads the whole table once per statement.
    """
    columns = ", ".join(f"{table.name}.{name}" for name in _column_names(table))
    same = " AND ".join(
        f"{table.name}.{name} = given.column{at}" for at, name in enumerate(key_columns, start=1)
    )
    for chunk in _chunks(keys):
        values = _values(len(chunk), ("",) * len(key_columns), _param_style(connection))
        statement = f"SELECT {columns} FROM (VALUES {values}) AS given CROSS JOIN {table.name} WHERE {same}"
        parameters = tuple(chain.from_iterable(chunk))
        driver = connection.connection.driver_connection
        if isinstance(driver, sqlite3.Connection):
            yield from driver.execute(statement, parameters).fetchall()
        else:
            yield from connection.exec_driver_sql(statement, parameters).all()


def _execute(connection: Connection, statement: str, values: tuple[Any, ...]) -> int:
    driver = connection.connection.driver_connection
    if isinstance(driver, sqlite3.Connection):
        # Straight to the driver: SQLAlchemy's overhead per statement would be most of the cost of a small commit.
        return driver.execute(statement, values).rowcount
    return connection.exec_driver_sql(statement, values).rowcount


def _chunks(rows: Iterable[Sequence[Any]]) -> Iterator[list[Sequence[Any]]]:
    left = iter(rows)
    while len(chunk := list(islice(left, LARGE_CHUNK_ROWS))) == LARGE_CHUNK_ROWS:
        yield chunk
    for start in range(0, len(chunk), MEDIUM_CHUNK_ROWS):
        yield chunk[start : start + MEDIUM_CHUNK_ROWS]


def _param_style(connection: Connection) -> str:
    return connection.dialect.paramstyle


@cache
def _insert_text(
    table: str,
    names: tuple[str, ...],
    count: int,
    replace_on: tuple[str, ...],
    keep_columns: tuple[str, ...],
    style: str,
    constant_columns: tuple[tuple[str, str], ...],
    *,
    add: bool,
) -> str:
    all_names = (*names, *(name for name, _ in constant_columns))
    values = _values(count, ("",) * len(names), style, tuple(value for _, value in constant_columns))
    text = f"INSERT INTO {table} ({', '.join(all_names)}) VALUES {values}"
    if replace_on:
        changes = ", ".join(
            f"{name} = {f'{table}.{name} + ' if add else ''}excluded.{name}"
            for name in names
            if name not in replace_on and name not in keep_columns
        )
        text += f" ON CONFLICT ({', '.join(replace_on)}) DO UPDATE SET {changes}"
    return text


@cache
def _update_text(
    table: str, set_clause: str, where: str, count: int, casts: tuple[str, ...], style: str
) -> str:
    # Both databases call the columns of a bare VALUES list column1, column2, …
    return (
        f"UPDATE {table} SET {set_clause} FROM (VALUES {_values(count, casts, style)}) AS given WHERE {where}"
    )


@cache
def _values(count: int, casts: tuple[str, ...], style: str, constant_columns: tuple[str, ...] = ()) -> str:
    numbers = iter(range(1, count * len(casts) + 1))

    def placeholder(cast: str) -> str:
        mark = f"${next(numbers)}" if style == "numeric_dollar" else "?"
        return f"CAST({mark} AS {cast})" if cast else mark

    return ", ".join(f"({', '.join([*map(placeholder, casts), *constant_columns])})" for _ in range(count))
