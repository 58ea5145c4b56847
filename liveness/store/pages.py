"""Pages that end early when their rows are large.

A row may have megabytes, and a client may ask for a thousand rows: together they would fill the memory, and decoding them
would block the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import Column, Connection, Select, func

PAGE_BYTES_MAX = 1024 * 1024
"""A page ends with the row that exceeds it, so every page has at least one row."""

RowT = TypeVar("RowT")


class Page(list[RowT]):
    """Rows of a list, in order."""

    is_cut = False
    """Whether it ends before the limit of rows because its rows are large: more of them may follow."""

    @classmethod
    def of(cls, rows: Iterable[RowT], *, is_cut: bool) -> Page[RowT]:
        page = cls(rows)
        page.is_cut = is_cut
        return page


def read_page(
    connection: Connection, query: Select[Any], payload: Column[Any], bytes_max: int = PAGE_BYTES_MAX
) -> Page[Any]:
    """Read the rows of an ordered and limited query. `payload`: the column with most of the bytes, in UTF-8."""
    if connection.dialect.name == "sqlite":
        # The driver reads row after row.
        result = connection.execute(query)
        position = query.selected_columns.values().index(payload)
        rows: list[Any] = []
        left = bytes_max
        for row in result:
            rows.append(row)
            left -= len(row[position].encode())
            if left < 0:
                is_cut = result.fetchone() is not None
                result.close()
                return Page.of(rows, is_cut=is_cut)
        return Page.of(rows, is_cut=False)
    sizes = connection.execute(query.with_only_columns(func.octet_length(payload))).scalars().all()
    count = _count_within(sizes, bytes_max)
    return Page.of(connection.execute(query.limit(count)).all(), is_cut=count < len(sizes))


def _count_within(sizes: Iterable[int], bytes_max: int) -> int:
    sizes, count = iter(sizes), 0
    while bytes_max >= 0 and (size := next(sizes, None)) is not None:
        bytes_max -= size
        count += 1
    return count


def newest_within(sizes: Iterable[tuple[int, RowT]], bytes_max: int = PAGE_BYTES_MAX) -> list[RowT]:
    """Return the first of these items, each given with its size, up to and with the one that exceeds `bytes_max`."""
    sized = list(sizes)
    count = _count_within((size for size, _ in sized), bytes_max)
    return [item for _, item in islice(sized, count)]
