"""The trends that docs/scaling.md describes, on the code that runs in production."""

from __future__ import annotations

from random import Random

import pytest

from bench.scaling_model import Costs, plan, rows_per_s
from bench.scaling_simulation import LEASE_MS, Detection, detected_ms, movement, placed, take_over_s
from liveness.cluster.membership import refresh_interval_ms

COSTS = Costs(
    node_us={"batched": 30},
    frontend_us={"batched": 0},
    postgres_row_us=50,
    wal_bytes_per_row=300,
    wal_bytes_per_beat=20,
    memory_bytes=1_000,
    look_ms=5,
    look_us_per_shard=5,
    postgres_look_ms=1,
    postgres_look_us_per_shard=2,
    taken_ms_per_shard=5,
    taken_us_per_worker=30,
)


def node_names(count: int) -> list[str]:
    return [f"10.0.0.{number}:7400" for number in range(count)]


# -- shard placement


def test_only_the_shards_of_a_leaving_node_move() -> None:
    nodes = node_names(7)
    before = placed(512, nodes)
    for leaver in nodes:
        after = placed(512, [node for node in nodes if node != leaver])
        assert {id for id in before if before[id] != after[id]} == {
            id for id, node in before.items() if node == leaver
        }


def test_a_new_node_gets_about_its_share_and_no_other_shard_moves() -> None:
    *nodes, new_node = node_names(8)
    before, after = placed(2_048, nodes), placed(2_048, [*nodes, new_node])
    moved = {id for id in before if before[id] != after[id]}
    assert {after[id] for id in moved} == {new_node}
    assert 0.75 / 8 <= len(moved) / 2_048 <= 1.25 / 8


def test_no_shard_moves_without_need() -> None:
    random = Random(7)
    assert all(movement(256, nodes, random).needless == 0 for nodes in (2, 3, 5, 20))


def test_more_shards_per_node_spread_more_evenly() -> None:
    def imbalance(shards: int) -> float:
        random = Random(3)
        return sum(movement(shards, 10, random).imbalance for _ in range(5)) / 5

    assert imbalance(40) > imbalance(160) > imbalance(640) > imbalance(2_560)


# -- failure detection


@pytest.mark.parametrize("lease_ms", [2_000, 4_000, 10_000, 30_000])
def test_all_observers_detect_a_dead_node_within_its_lease_and_three_reads(lease_ms: int) -> None:
    random, every_ms = Random(lease_ms), refresh_interval_ms(lease_ms)
    for _ in range(20):
        took_ms = detected_ms(5, lease_ms, every_ms, random)
        # The node last renewed up to one interval before it died; the lease counts from there.
        assert lease_ms - every_ms - 50 <= took_ms <= lease_ms * 1.05 + 3 * every_ms


def test_continuous_reads_do_not_change_the_detection_delay() -> None:
    random = Random(5)
    for _ in range(20):
        assert LEASE_MS - 50 <= detected_ms(3, LEASE_MS, 1, random) <= LEASE_MS + 100


def test_no_live_node_is_declared_lost() -> None:
    cluster = Detection(6, Random(11))
    cluster.run_until(120_000)
    assert not any(observer.lost_ms for observer in cluster.observers.values())


@pytest.mark.parametrize("seed", range(10))
def test_a_paused_observer_declares_no_node_lost(seed: int) -> None:
    random = Random(seed)
    cluster = Detection(4, random)
    cluster.run_until(5_000)
    for _ in range(10):
        cluster.stand_still("node-1", random.uniform(100, 60_000))
        cluster.run_until(cluster.now_ms + 62_000)
    assert not cluster.observers["node-1"].lost_ms
    others = (observer for id, observer in cluster.observers.items() if id != "node-1")
    assert all(set(observer.lost_ms) <= {"node-1"} for observer in others)


def test_no_node_is_lost_when_all_pause_at_once() -> None:
    """For example when the machines are suspended, or no node reaches the database."""
    cluster = Detection(4, Random(2))
    cluster.run_until(5_000)
    for node_id in cluster.observers:
        cluster.stand_still(node_id, 600_000)
    cluster.run_until(660_000)
    assert not any(observer.lost_ms for observer in cluster.observers.values())


# -- take-over times and the cost of heartbeats


def test_a_take_over_is_shorter_with_more_nodes_and_longer_with_more_shards_or_workers() -> None:
    def reading_s(shards: int, nodes: int, workers: int) -> float:
        random = Random(1)
        took = [take_over_s(shards, nodes, workers, 4, random, COSTS)[1] for _ in range(5)]
        return min(took) - LEASE_MS / 1_000

    assert reading_s(256, 20, 1_000_000) < reading_s(256, 4, 1_000_000)
    assert reading_s(4_096, 4, 1_000) > reading_s(64, 4, 1_000)
    assert reading_s(256, 4, 4_000_000) > reading_s(256, 4, 1_000_000)


def test_the_row_rate_follows_heartbeats_at_low_load_and_shards_at_high_load() -> None:
    assert rows_per_s(10, 64) == pytest.approx(10, rel=0.01)
    assert rows_per_s(1e7, 64) == pytest.approx(64 * 50, rel=0.01)


def test_the_same_heartbeats_on_more_shards_cost_the_database_more() -> None:
    few, many = (plan(1_000_000, 10, "batched", shards, COSTS) for shards in (64, 1_024))
    assert many.wal_bytes_per_s > few.wal_bytes_per_s
    assert many.postgres_processors > few.postgres_processors
    assert many.nodes == few.nodes
