"""The platform of a server: the host name, network and database of its machine. A simulation supplies its own."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from liveness.config.settings import Settings
from liveness.server.direct_connections import OwnAddresses
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


def _machine() -> str:
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot_id} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    host: str = field(default_factory=socket.gethostname)
    process_id: int = field(default_factory=os.getpid)
    machine: str = field(default_factory=_machine)
    """The running kernel and its process namespace, in which `process_id` is unique; empty if the system does not tell."""
    listener: Callable[..., Any] | None = None
    """Makes the gRPC servers; None: as the settings say."""
    connect: Callable[..., Any] = grpc.aio.insecure_channel
    own_addresses: Callable[[str], OwnAddresses] = OwnAddresses
    """Returns what recognises this server's own addresses, given the address at which it listens."""
    database: Callable[[Settings, str], Database] = _database
    """Opens the database of these settings for this owner."""
    runs_maintenance: bool = True
    """Whether the maintenance scheduler runs. It uses its own clock and threads."""


THIS_PLATFORM = Platform()
