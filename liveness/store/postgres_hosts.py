"""A connection to PostgreSQL at whichever of several hosts takes writes.

asyncpg could be given all hosts at once, but has one time-out for all of them: a first host that is switched off, and so
does not even refuse, would use it up on every attempt, and the one that was promoted would never be asked.
"""

from __future__ import annotations

from typing import Any

import asyncpg

PRIMARY = "primary"


class NoPrimaryReachable(ConnectionError):
    """None of several hosts can be used; says why, for each."""


class PrimaryConnector:
    """The host that served last is asked first."""

    def __init__(self) -> None:
        self._last_address: tuple[str, int] | None = None

    async def connect(self, **options: Any) -> Any:
        """`options` are those of `asyncpg.connect`; the time-out holds for each host."""
        hosts, ports = options.pop("host", None), options.pop("port", None)
        if not isinstance(hosts, list):
            return await asyncpg.connect(host=hosts, port=ports, **options)
        # A standby answers, too, but takes no writes.
        options.setdefault("target_session_attrs", PRIMARY)
        addresses = list(zip(hosts, ports, strict=True))
        reasons = []
        for address in sorted(addresses, key=lambda address: address != self._last_address):
            try:
                connection = await asyncpg.connect(host=address[0], port=address[1], **options)
            except (OSError, asyncpg.PostgresError, asyncpg.InternalClientError) as error:
                reasons.append(f"{address[0]}:{address[1]}: {_describe_error(error, options)}")
            else:
                self._last_address = address
                return connection
        raise NoPrimaryReachable("; ".join(reasons))


def _describe_error(error: Exception, options: dict[str, Any]) -> str:
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return f"is not {options['target_session_attrs']}"
    if isinstance(error, TimeoutError):
        return f"no answer within {options['timeout']:.12g} s"
    return str(error)
