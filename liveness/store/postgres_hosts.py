"""Connect to the one of several PostgreSQL hosts that accepts writes.

asyncpg accepts several hosts, but with one time-out for all of them: a first host that is switched off, and does not even
refuse connections, would use up the time-out on every attempt, and the promoted host would never be tried.
"""

from __future__ import annotations

from typing import Any

import asyncpg

PRIMARY = "primary"


class NoPrimaryReachable(ConnectionError):
    """None of the hosts can be used; the message names the reason, for each of several hosts."""


class PrimaryConnector:
    """Tries the host of the last successful connection first."""

    def __init__(self) -> None:
        self._last_address: tuple[str, int] | None = None

    async def connect(self, **options: Any) -> Any:
        """`options`: those of `asyncpg.connect`. The time-out applies to each host separately."""
        hosts, ports = options.pop("host", None), options.pop("port", None)
        if not isinstance(hosts, list):
            try:
                return await asyncpg.connect(host=hosts, port=ports, **options)
            except TimeoutError as error:
                raise NoPrimaryReachable(_describe_error(error, options)) from error
        # A standby accepts connections, but no writes.
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
