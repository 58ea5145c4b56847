"""Connect to the user's database, and say in one sentence what went wrong."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import asyncpg

from liveness.templated_error import TemplatedError

CONNECT_TIMEOUT_S = 10.0
SERVICE = "service="
APPLICATION_NAME = "liveness-door-pgai"


class PgaiError(TemplatedError):
    """What a person can do something about. The message is one sentence."""

    template = "It failed."


class CannotConnect(PgaiError):
    template = "Cannot connect to {dsn}: {why}."

    dsn: str
    why: str


class Refused(PgaiError):
    template = "The database refuses it: {why}; nothing was changed."

    why: str


def shown_dsn(dsn: str) -> str:
    """The DSN without its password."""
    if dsn.startswith(SERVICE):
        return dsn
    try:
        parts = urlsplit(dsn)
        hosts = parts.netloc.rpartition("@")[2] or ",".join(
            value for name, value in parse_qsl(parts.query) if name in ("host", "service")
        )
        user = f"{parts.username}@" if parts.username else ""
    except ValueError:
        return "the database"
    return f"postgresql://{user}{hosts}{parts.path}"


async def connect(
    dsn: str, timeout_s: float = CONNECT_TIMEOUT_S, command_timeout_s: float | None = None
) -> asyncpg.Connection:
    """Raises CannotConnect. `dsn`: a URL, or `service=NAME` of a service file."""
    options: dict[str, Any] = (
        {"service": dsn.removeprefix(SERVICE)} if dsn.startswith(SERVICE) else {"dsn": dsn}
    )
    try:
        # Without a cache of statements it works through a pooler, too.
        async with asyncio.timeout(timeout_s):
            return await asyncpg.connect(
                **options,
                timeout=timeout_s,
                command_timeout=command_timeout_s,
                statement_cache_size=0,
                server_settings={"application_name": APPLICATION_NAME},
            )
    except TimeoutError:
        raise CannotConnect(dsn=shown_dsn(dsn), why=f"no answer within {timeout_s:.0f} s") from None
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError, TypeError) as error:
        # Without the cause, which can contain the password.
        raise CannotConnect(dsn=shown_dsn(dsn), why=describe(error)) from None


def describe(error: BaseException) -> str:
    """One line, without a period."""
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens there"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].strip().rstrip(".")
