"""A connection to PostgreSQL at whichever of several hosts takes writes.

asyncpg could be given all hosts at once, but has one time-out for all of them: a first host that is switched off, and so
does not even refuse, would use it up on every attempt, and the one that was promoted would never be asked.
"""

from __future__ import annotations

from typing import Any

import asyncpg

PRIMARY = "primary"


class NoHostServes(ConnectionError):
    """None of several hosts can be used; says why, for each."""


class Hosts:
    """The host that served last is asked first."""

    def __init__(self) -> None:
        self._last: tuple[str, int] | None = None

    async def connect(self, **options: Any) -> Any:
        """`options` are those of `asyncpg.connect`; the time-out holds for each host."""
        hosts, ports = options.pop("host", None), options.pop("port", None)
        if not isinstance(hosts, list):
            return await asyncpg.connect(host=hosts, port=ports, **options)
        # A standby answers, too, but takes no writes.
        options.setdefault("target_session_attrs", PRIMARY)
        places = list(zip(hosts, ports, strict=True))
        reasons = []
        for place in sorted(places, key=lambda place: place != self._last):
            try:
                connection = await asyncpg.connect(host=place[0], port=place[1], **options)
            except (OSError, asyncpg.PostgresError, asyncpg.InternalClientError) as error:
                reasons.append(f"{place[0]}:{place[1]}: {_reason(error, options)}")
            else:
                self._last = place
                return connection
        raise NoHostServes("; ".join(reasons))


def _reason(error: Exception, options: dict[str, Any]) -> str:
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return f"is not {options['target_session_attrs']}"
    if isinstance(error, TimeoutError):
        return f"no answer within {options['timeout']:.12g} s"
    return str(error)
