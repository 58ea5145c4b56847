"""The files of a database belong to their user alone: they hold sessions, inputs and results, which other users must not read.

SQLite creates its WAL and shared memory with the permissions of the database. The folder stays as it is.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

import structlog

logger = structlog.get_logger("liveness.store")

PRIVATE = 0o600


def open_private(path: str, flags: int) -> int:
    """An `opener` for `open`: a file that it creates is private from the first moment."""
    return os.open(path, flags, PRIVATE)


def create_private(path: Path) -> None:
    """Create an empty file unless there is one."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE))


def restrict_to_owner(paths: Iterable[Path]) -> None:
    """Take the access of other users away from files that exist and belong to this user."""
    for path in paths:
        try:
            found = path.stat()
        except FileNotFoundError:
            continue
        mode = stat.S_IMODE(found.st_mode)
        if mode & 0o077 and found.st_uid == os.geteuid():
            path.chmod(mode & PRIVATE)
            logger.warning("took other users' access to a file away", path=str(path), was=oct(mode))
