"""What a server has from the machine it runs on: a name, a network, a database. A simulation has its own."""

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
        # Here, because its driver takes a tenth of a second to load and most who start a server do not need it.
        from liveness.store.postgres import PostgresDatabase

        # Who is silent for longer is lost to the others, and must not stand in their way.
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
    """Of these settings, for this owner."""
    runs_maintenance: bool = True
    """Whether maintenance runs by itself. Its scheduler has a clock and threads of its own."""


THIS_PLATFORM = Platform()
