"""Flaws that the simulation must find.

Each removes one promise from production code, which proves that the rules can be broken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from sqlalchemy import Connection

import liveness.cluster.own_lease
import liveness.cluster.quotas
import liveness.domain.decider
import liveness.domain.reactions
import liveness.engine.committer
import liveness.engine.node
import liveness.engine.receive_progress
import liveness.engine.shard
import liveness.expiry.lease_deadlines
import liveness.expiry.throttle
import liveness.sdk.local_lease
import liveness.store.commit
import liveness.tasks.activity_limits
from liveness.expiry.throttle import ExpiryHold
from liveness.sdk.local_lease import LocalLease
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


async def _wait_for_ever(self: Any, *_: object) -> None:
    await asyncio.get_running_loop().create_future()


def _trusted_too_long(term_ms: int) -> int:
    return term_ms + 200


def _attached_without_grace(known: LocalLease, grace_ms: int | None, requested_ms: int) -> LocalLease:
    return replace(known, grace_ms=None, has_older_stream=False)


def _three_seconds_late(self: Any, worker: Any, *_: object) -> int:
    return worker.deadline_ms + 3_000


def _half_the_limit(self: Any, shard: Any, activity: Any, end: Any) -> int:
    return int(end.end_ms - end.limit_ms / 2)


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
    "workers ignore their disconnect grace": (liveness.sdk.local_lease, "attached", _attached_without_grace),
    "workers take a dead lone server for a cut network": (
        liveness.sdk.local_lease,
        "server_ended",
        lambda known, _: known,
    ),
    "time limits end early": (liveness.tasks.activity_limits.ActivityLimits, "_end_ms", _half_the_limit),
    "time limits end three seconds late": (
        liveness.tasks.activity_limits.ActivityLimits,
        "_end_ms",
        lambda self, shard, activity, end: end.end_ms + 3_000,
    ),
    "leases end three seconds late": (
        liveness.expiry.lease_deadlines.LeaseDeadlines,
        "_silence_ends_ms",
        _three_seconds_late,
    ),
    "leases end while calls are heard too late for them": (
        liveness.engine.receive_progress.ReceiveProgress,
        "ends_from_ms",
        lambda *_: 0,
    ),
    "a storm never ends": (liveness.expiry.throttle.ExpiryThrottle, "_hold", _hold_for_ever),
    "a heartbeat does not end a hold": (
        liveness.expiry.throttle.ExpiryThrottle,
        "on_heartbeat",
        lambda *_: False,
    ),
    "no quota": (liveness.cluster.quotas.Quotas, "admit", lambda *_: None),
    "a node that is cut off from the database goes on": (
        liveness.cluster.own_lease.OwnLease,
        "wait_until_over",
        _wait_for_ever,
    ),
}


FOUND_BY: Mapping[str, tuple[int, ...]] = {
    "the end of a lease reschedules nothing": (2, 3),
    "commits ignore the epoch": (25,),
    "answers before the commit": (1, 3),
    "answers although the commit failed": (2, 5),
    "a replaced session's activities are not rescheduled": (1,),
    "workers trust their lease too long": (11, 13),
    "workers ignore their disconnect grace": (28, 29),
    "workers take a dead lone server for a cut network": (68, 78),
    "time limits end early": (81,),
    "time limits end three seconds late": (87, 89),
    "leases end three seconds late": (1,),
    "leases end while calls are heard too late for them": (54, 63),
    "a storm never ends": (1,),
    "a heartbeat does not end a hold": (5,),
    "no quota": (2,),
    "a node that is cut off from the database goes on": (13,),
}
"""Seeds whose worlds are known to break a rule with this flaw."""


@contextmanager
def flawed(name: str) -> Iterator[None]:
    owner, attribute, flaw = FLAWS[name]
    with patch.object(owner, attribute, flaw):
        yield
