"""Concurrency limits: at most so many activities of one workflow are STARTED at once.

The activities of a workflow live on one shard, and so does their limit. So whoever starts one counts the others in the same turn, and the
log of the shard has at no point more STARTED activities than the limit allowed there.
"""

from __future__ import annotations

from typing import NamedTuple

from liveness.domain.errors import ConcurrencyLimitNotFound
from liveness.domain.events import ConcurrencyLimitEvent, ConcurrencyLimitRemoved, ConcurrencyLimitSet

MAXIMUM_MAX = 1_000_000


class LimitKey(NamedTuple):
    namespace: str
    workflow_id: str


class ConcurrencyLimit(NamedTuple):
    maximum: int
    created_ms: int
    """Wall time, like `updated_ms`."""
    updated_ms: int


def set_limit(
    key: LimitKey, known: ConcurrencyLimit | None, maximum: int, reason: str, by: str
) -> tuple[ConcurrencyLimitEvent, ...]:
    """A lower limit than are running takes nothing away: none starts until enough have ended."""
    if known is not None and known.maximum == maximum:
        return ()
    return (ConcurrencyLimitSet(workflow_id=key.workflow_id, maximum=maximum, reason=reason, by=by),)


def remove_limit(
    key: LimitKey, known: ConcurrencyLimit | None, reason: str, by: str
) -> tuple[ConcurrencyLimitEvent, ...]:
    if known is None:
        raise ConcurrencyLimitNotFound(workflow=key.workflow_id, namespace=key.namespace)
    return (ConcurrencyLimitRemoved(workflow_id=key.workflow_id, reason=reason, by=by),)


def evolve(
    limit: ConcurrencyLimit | None, event: ConcurrencyLimitEvent, wall_ms: int
) -> ConcurrencyLimit | None:
    """`wall_ms`: the wall time that the log has for the event."""
    if isinstance(event, ConcurrencyLimitRemoved):
        return None
    return ConcurrencyLimit(event.maximum, wall_ms if limit is None else limit.created_ms, wall_ms)
