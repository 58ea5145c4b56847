"""Checks that must hold for a cluster after any fault."""

from __future__ import annotations

import json
from collections.abc import Mapping

from sqlalchemy import select

from liveness.store.schema import metadata
from tests.databases import StoreDatabase
from tests.system.cluster.nodes import Cluster
from tests.system.server.audit import audit_database, audit_workers, expire_all_leases
from tests.system.server.crash_loop import check
from tests.system.server.ledger import Ledger

NEAR_MS = 60_000
"""Wall clocks that differ by less than this count as equal."""


async def check_cluster(cluster: Cluster, store_database: StoreDatabase, ledger: Ledger) -> str:
    """Compare the workers with the ledger, let all leases expire, stop every node and audit the database.

    Nothing acknowledged was lost, no lease ended early, each shard's log is complete, its epochs rise by one with
    each take-over, and each lost activity was rescheduled once. No call may be under way. Returns the figures.
    """
    await audit_workers(cluster, ledger)
    await expire_all_leases(cluster, ledger)
    await cluster.stop()
    rows = await audit_database(store_database, ledger, compacted=False)
    check(ledger)
    assert ledger.acked, "no call was acknowledged, so the test proves nothing"
    return (
        f"{ledger.acked} acknowledged, {ledger.in_doubt} in doubt, of which {ledger.in_doubt_applied} applied; "
        f"{ledger.lapses} leases lapsed; {rows} log rows; 0 violations"
    )


async def check_writers(store_database: StoreDatabase, skew_by_owner: Mapping[str, int], now_ms: int) -> int:
    """Check that each log row carries the wall clock of the shard's last owner, so that no former owner wrote to the
    shard.

    `skew_by_owner`: the error of each owner's clock; any two differ by more than the duration of the test. Returns
    the number of rows.
    """
    log = metadata.tables["log"]
    rows = await store_database.run(
        lambda connection: connection.execute(
            select(log.c.shard_id, log.c.seq, log.c.kind, log.c.wall_ms, log.c.payload).order_by(
                log.c.shard_id, log.c.seq
            )
        ).all()
    )
    owners: dict[int, str] = {}
    for row in rows:
        if row.kind == "ShardTaken":
            owners[row.shard_id] = json.loads(row.payload)["owner"]
        owner = owners[row.shard_id]
        apart_ms = abs(row.wall_ms - skew_by_owner[owner] - now_ms)
        assert apart_ms < NEAR_MS, f"{row} is {apart_ms} ms away from the clock of {owner}"
    return len(rows)
