"""Flaws that the simulation must find.

Each removes one promise from production code, which proves that the rules can be broken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from sqlalchemy import Connection

import liveness.cluster.quotas
import liveness.domain.decider
import liveness.domain.reactions
import liveness.engine.committer
import liveness.engine.node
import liveness.engine.shard
import liveness.expiry.lease_deadlines
import liveness.expiry.throttle
import liveness.sdk.local_lease
import liveness.store.commit
from liveness.expiry.throttle import ExpiryHold
from liveness.store.api import ShardCommit
from liveness.store.bulk import update_rows


def _advance_heads_without_epochs(connection: Connection, commits: Sequence[ShardCommit]) -> None:
    heads = [(c.shard_id, c.last_seq, c.observed_ms) for c in commits]
    update_rows(
        connection,
        "shards",
        "last_seq = given.column2, observed_ms = given.column3",
        "shards.shard_id = given.column1",
        heads,
        ("BIGINT",) * 3,
    )


async def _do_not_wait(self: Any) -> None:
    return


def _trusted_too_long(term_ms: int) -> int:
    return term_ms + 200


def _three_seconds_late(self: Any, worker: Any, *_: object) -> int:
    return worker.deadline_ms + 3_000


def _hold_for_ever(self: Any, storm_state: Any, one: Any, *_: object) -> ExpiryHold:
    now_ms = one.shard.now_ms()
    return ExpiryHold(one.shard, now_ms, now_ms + one.worker.granted_ms)


FLAWS: Mapping[str, tuple[Any, str, Callable[..., Any]]] = {
    "the end of a lease reschedules nothing": (liveness.engine.shard, "react", lambda *_: ()),
    "commits ignore the epoch": (liveness.store.commit, "_advance_heads", _advance_heads_without_epochs),
    "answers before the commit": (liveness.engine.committer.CommitGroup, "wait", _do_not_wait),
    "answers although the commit failed": (liveness.engine.committer.CommitGroup, "failed", lambda *_: False),
    "a replaced session's activities are not rescheduled": (
        liveness.domain.reactions,
        "lost_with",
        lambda *_: {},
    ),
    "workers trust their lease too long": (liveness.sdk.local_lease, "_trusted_ms", _trusted_too_long),
    "leases end three seconds late": (
        liveness.expiry.lease_deadlines.LeaseDeadlines,
        "_silence_ends_ms",
        _three_seconds_late,
    ),
    "a storm never ends": (liveness.expiry.throttle.ExpiryThrottle, "_hold", _hold_for_ever),
    "a heartbeat does not end a hold": (
        liveness.expiry.throttle.ExpiryThrottle,
        "on_heartbeat",
        lambda *_: False,
    ),
    "no quota": (liveness.cluster.quotas.Quotas, "admit", lambda *_: None),
}


FOUND_BY: Mapping[str, tuple[int, ...]] = {
    "the end of a lease reschedules nothing": (2, 3),
    "commits ignore the epoch": (4, 8, 7),
    "answers before the commit": (1, 3),
    "answers although the commit failed": (2, 5),
    "a replaced session's activities are not rescheduled": (1,),
    "workers trust their lease too long": (3,),
    "leases end three seconds late": (1,),
    "a storm never ends": (1,),
    "a heartbeat does not end a hold": (5,),
    "no quota": (2,),
}
"""Seeds whose worlds are known to break a rule with this flaw."""


@contextmanager
def flawed(name: str) -> Iterator[None]:
    owner, attribute, flaw = FLAWS[name]
    with patch.object(owner, attribute, flaw):
        yield
