"""Detect durable commits that SQLite skipped when it recovered a damaged write-ahead log.

SQLite stops its recovery at the first frame with a wrong checksum and treats the rest as a torn commit. That is correct only
for the last commit: with `synchronous=FULL`, no frame of the next commit is written before this one is synced. So a commit
after the end of the recovery that is followed by another frame was durable, and is lost because of damage.

Damage within the last commit itself cannot be told from a torn commit.
The format: https://www.sqlite.org/walformat.html
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import NamedTuple

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">4I")
_FRAME_HEADER_BYTES = 24
_MAGIC = 0x377F0682
"""The lowest bit is the byte order of the checksums."""
_LAST_VALID_FRAME_AT = 16  # in the index's header


class _Frame(NamedTuple):
    number: int
    ends_commit: bool


def has_lost_commits(log: Path, index: Path) -> bool:
    """Call right after the first connection of the only process has recovered the WAL."""
    try:
        with log.open("rb") as file:
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size or not any(header):
                return False  # it was being created, and nothing was committed to it
            if not _is_header_valid(header):
                return True
            frames = _frames(file.fileno(), header)
        with index.open("rb") as file:
            file.seek(_LAST_VALID_FRAME_AT)
            [recovered] = struct.unpack("=I", file.read(4))
    except FileNotFoundError:
        return False
    skipped = [frame for frame in frames if frame.number > recovered]
    ends = [frame.number for frame in skipped if frame.ends_commit]
    return bool(ends) and skipped[-1].number > ends[0]


def _is_header_valid(header: bytes) -> bool:
    magic, *_, first, second = _HEADER.unpack(header)
    if magic | 1 != _MAGIC | 1:
        return False
    order = ">" if magic & 1 else "<"
    words = struct.unpack(f"{order}6I", header[:_FRAME_HEADER_BYTES])
    a = b = 0
    for even, odd in zip(words[::2], words[1::2], strict=True):
        a = (a + even + b) & 0xFFFFFFFF
        b = (b + odd + a) & 0xFFFFFFFF
    return (a, b) == (first, second)


def _frames(file: int, header: bytes) -> list[_Frame]:
    """The frames of the current generation of the log; frames of earlier generations have other salts."""
    _, _, page_bytes, _, *salts, _, _ = _HEADER.unpack(header)
    frame_bytes = _FRAME_HEADER_BYTES + page_bytes
    count = (os.fstat(file).st_size - _HEADER.size) // frame_bytes
    found = []
    for number in range(1, count + 1):
        offset = _HEADER.size + (number - 1) * frame_bytes
        _, pages_after_commit, *frame_salts = _FRAME.unpack(os.pread(file, _FRAME.size, offset))
        if frame_salts == salts:
            found.append(_Frame(number, pages_after_commit != 0))
    return found
