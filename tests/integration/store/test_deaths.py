"""The projection of deaths, from which certificates count who died with a worker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from liveness.domain.death_certificate import Death
from liveness.domain.events import WorkerDeactivated
from liveness.domain.worker import InactiveReason
from liveness.store import deaths
from liveness.store.errors import ShardsLost
from liveness.store.sql import SqlStore
from tests.databases import StoreDatabase
from tests.unit.store.golden_v3 import CERTIFICATE
from tests.unit.store.samples import About, key, take


def died(worker: str, wall_ms: int, host: str = "db-3", namespace: str = "orders") -> About:
    event = WorkerDeactivated(
        reason=InactiveReason.LEASE_EXPIRED, detail="", at_ms=0, cleanup_delay_ms=0,
        certificate=replace(CERTIFICATE, host_name=host, build_id="b7"),
    )  # fmt: skip
    return About(event, key(worker, namespace), wall_ms=wall_ms)


def left(worker: str, wall_ms: int) -> About:
    event = WorkerDeactivated(reason=InactiveReason.SHUTDOWN, detail="", at_ms=0, cleanup_delay_ms=0)
    return About(event, key(worker), wall_ms=wall_ms)


async def test_deaths_are_found_by_namespace_and_time_over_all_shards(store: SqlStore) -> None:
    first, second = await take(store, 0, 1)
    await first.commit([died("a", 100), died("b", 200), died("c", 200), left("d", 200)])
    await first.commit([died("e", 200, "db-4")])
    await second.commit([died("f", 200), died("g", 301), died("a", 200, namespace="billing")])
    found = await store.deaths_between("orders", 200, 300)
    assert sorted(found) == [
        Death("b", "db-3", "b7"), Death("c", "db-3", "b7"), Death("e", "db-4", "b7"), Death("f", "db-3", "b7"),
    ]  # fmt: skip
    assert len(await store.deaths_between("orders", 100, 301)) == 6
    assert await store.deaths_between("billing", 0, 1_000) == [Death("a", "db-3", "b7")]
    assert await store.deaths_between("orders", 302, 1_000) == []


async def test_deaths_of_one_millisecond_share_a_row(store_database: StoreDatabase, store: SqlStore) -> None:
    [owner] = await take(store, 0)
    await owner.commit([died(f"w{n}", 100 + n % 2) for n in range(1_000)])
    assert len((await store_database.dump())["deaths"]) == 2
    assert len(await store.deaths_between("orders", 100, 101)) == 1_000


async def test_the_same_bound_gives_the_same_deaths_again(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deaths, "DEATHS_READ_MAX", 3)
    [owner] = await take(store, 0)
    for n in range(6):
        await owner.commit([died(f"w{n}", 100 + n)])
    assert [death.worker for death in await store.deaths_between("orders", 0, 1_000)] == ["w0", "w1", "w2"]


async def test_a_former_owner_can_neither_add_nor_delete_deaths(store: SqlStore) -> None:
    [old] = await take(store, 0)
    [new] = await take(store, 0)
    with pytest.raises(ShardsLost):
        await old.commit([died("a", 100)])
    await new.commit([died("b", 100)])
    with pytest.raises(ShardsLost):
        await store.prune_deaths(old.owned, {}, 1_000)
    assert await store.deaths_between("orders", 0, 1_000) == [Death("b", "db-3", "b7")]


async def test_deaths_are_deleted_by_the_cutoff_of_their_namespace(store: SqlStore) -> None:
    first, second = await take(store, 0, 1)
    for namespace in ("orders", "billing"):
        await first.commit([died("a", 100, namespace=namespace), died("b", 200, namespace=namespace)])
    await second.commit([died("c", 100)])
    assert await store.prune_deaths(first.owned, {"orders": 200}, 100) == 1
    assert [death.worker for death in await store.deaths_between("orders", 0, 1_000)] == ["c", "b"]
    assert len(await store.deaths_between("billing", 0, 1_000)) == 2
    assert await store.prune_deaths(first.owned, {}, -60_000) == 0, "a negative cutoff keeps all"
