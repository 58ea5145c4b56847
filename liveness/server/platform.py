"""The platform of a server: the host name, network and database of its machine. A simulation supplies its own."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from liveness.config.settings import Settings
from liveness.store.database import Database
from liveness.store.sqlite import SqliteDatabase


def _database(settings: Settings, owner: str) -> Database:
    if (path := settings.sqlite_path) is None:
        # Imported late: the driver takes a tenth of a second to load, and a server on SQLite does not need it.
        from liveness.store.postgres import PostgresDatabase

        # After a silence of this length other nodes treat this one as lost, so its transactions must not block them.
        return PostgresDatabase(settings.db, settings.db_connections, settings.node_lease_ms, owner)
    database = SqliteDatabase(path)
    database.lock()
    database.write_lock_holder(f"process {os.getpid()}")
    return database


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    host: str = field(default_factory=socket.gethostname)
    process_id: int = field(default_factory=os.getpid)
    listener: Callable[..., Any] = grpc.aio.server
    connect: Callable[..., Any] = grpc.aio.insecure_channel
    database: Callable[[Settings, str], Database] = _database
    """Opens the database of these settings for this owner."""
    runs_maintenance: bool = True
    """Whether the maintenance scheduler runs. It uses its own clock and threads."""


THIS_PLATFORM = Platform()
