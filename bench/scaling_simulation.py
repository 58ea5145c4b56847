"""python -m bench.scaling_simulation: check that clusters of many nodes behave as the model in docs/scaling.md says.

The simulation is pure and seeded, on a virtual clock. Production code places shards and detects failures
(`liveness.cluster.placement`, `liveness.cluster.failure_detector`); only the database and the network are simulated.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple

from bench.scaling_model import MEASURED, CapacityPlan, Costs, plan, taken_s
from liveness.cluster.failure_detector import FailureDetector
from liveness.cluster.membership import ACQUIRE_BATCH_SIZE, refresh_interval_ms
from liveness.cluster.placement import choose_node

SEED = 1
LEASE_MS = 4_000
LOOK_MS = (2, 20)
"""The shortest and the longest registry read."""


def addresses(count: int, random: Random) -> list[str]:
    return [
        f"10.{random.randrange(256)}.{random.randrange(256)}.{index % 256}:7400-{index}"
        for index in range(count)
    ]


# -- movement


class Movement(NamedTuple):
    shards: int
    nodes: int
    """Before the change."""
    joined: float
    """Share of the shards that moved to a new node; 1 / (nodes + 1) would be ideal."""
    left: float
    """Share that moved when one of the nodes left; 1 / nodes would be ideal."""
    needless: int
    """Shards that moved although neither their old nor their new owner joined or left."""
    imbalance: float
    """Shards of the node with the most, against the mean."""


def placed(shards: int, nodes: Collection[str]) -> dict[int, str | None]:
    return {shard_id: choose_node(shard_id, nodes) for shard_id in range(shards)}


def movement(shards: int, count: int, random: Random) -> Movement:
    *nodes, newcomer = addresses(count + 1, random)
    before = placed(shards, nodes)
    joined = placed(shards, [*nodes, newcomer])
    to_newcomer = [id for id in before if before[id] != joined[id]]
    needless = sum(joined[id] != newcomer for id in to_newcomer)
    leaver = random.choice(nodes)
    left = placed(shards, [node for node in nodes if node != leaver]) if count > 1 else before
    from_leaver = [id for id in before if before[id] != left[id]]
    needless += sum(before[id] != leaver for id in from_leaver)
    most = max(Counter(before.values()).values())
    return Movement(
        shards, count, len(to_newcomer) / shards, len(from_leaver) / shards, needless, most * count / shards
    )


# -- detection


class Row(NamedTuple):
    """A node in the registry."""

    node_id: str
    beat: int
    lease_ms: int


class Observer:
    """A node that renews its lease and reads the registry, as `Membership` does."""

    def __init__(self, node_id: str) -> None:
        self.node_id = node_id
        self.failure_detector = FailureDetector()
        self.lost_ms: dict[str, int] = {}
        """When it first considered each other node lost."""


class Detection:
    """A cluster on a virtual clock."""

    def __init__(
        self, nodes: int, random: Random, *, lease_ms: int = LEASE_MS, every_ms: float | None = None
    ) -> None:
        self._random = random
        self._lease_ms = lease_ms
        self._every_ms = every_ms or refresh_interval_ms(lease_ms)
        self._beats = {f"node-{number}": 1 for number in range(nodes)}
        self.observers = {node_id: Observer(node_id) for node_id in self._beats}
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._number = 0
        self._stopped: dict[str, float] = {}
        """The stopped nodes, and until when."""
        self.now_ms = 0.0
        for observer in self.observers.values():
            self._at(random.uniform(0, self._every_ms), lambda at, o=observer: self._begin_look(o, at))  # type: ignore[misc]

    def _at(self, at_ms: float, what: Callable[[float], None]) -> None:
        self._number += 1
        heappush(self._events, (at_ms, self._number, what))

    def run_until(self, end_ms: float) -> None:
        while self._events and self._events[0][0] <= end_ms:
            self.now_ms, _, what = heappop(self._events)
            what(self.now_ms)
        self.now_ms = end_ms

    def kill(self, node_id: str) -> None:
        self._stopped[node_id] = float("inf")

    def stand_still(self, node_id: str, ms: float) -> None:
        self._stopped[node_id] = self.now_ms + ms

    def _awake(self, observer: Observer, at_ms: float, then: Callable[[float], None]) -> bool:
        """Run `then` now, or when the stopped process resumes, if ever."""
        until_ms = self._stopped.get(observer.node_id, 0)
        if until_ms <= at_ms:
            return True
        if until_ms != float("inf"):
            self._at(until_ms, then)
        return False

    def _begin_look(self, observer: Observer, at_ms: float) -> None:
        if self._awake(observer, at_ms, lambda at: self._begin_look(observer, at)):
            done_ms = at_ms + self._random.uniform(*LOOK_MS)
            self._at(done_ms, lambda at: self._commit_look(observer, at_ms, at))

    def _commit_look(self, observer: Observer, began_ms: float, at_ms: float) -> None:
        """The database renews the node's own row and returns all rows, also for a node that has stopped meanwhile."""
        self._beats[observer.node_id] += 1
        rows = [Row(node_id, beat, self._lease_ms) for node_id, beat in self._beats.items()]
        self._end_look(observer, began_ms, rows, at_ms)

    def _end_look(self, observer: Observer, began_ms: float, rows: Sequence[Row], at_ms: float) -> None:
        if not self._awake(observer, at_ms, lambda at: self._end_look(observer, began_ms, rows, at)):
            return
        others = [row for row in rows if row.node_id != observer.node_id]
        for node_id in observer.failure_detector.refresh(others, round(began_ms), round(at_ms)):
            observer.lost_ms.setdefault(node_id, round(at_ms))
        self._at(at_ms + self._every_ms, lambda at: self._begin_look(observer, at))


def detected_ms(nodes: int, lease_ms: int, every_ms: float, random: Random) -> float:
    """Return the time from the death of a node until the last of the others has detected it."""
    cluster = Detection(nodes, random, lease_ms=lease_ms, every_ms=every_ms)
    cluster.run_until(2_000 + random.uniform(0, lease_ms))
    killed_ms = cluster.now_ms
    cluster.kill("node-0")
    cluster.run_until(killed_ms + 2 * lease_ms)
    survivors = [observer for observer in cluster.observers.values() if observer.node_id != "node-0"]
    return max(observer.lost_ms["node-0"] for observer in survivors) - killed_ms


# -- take-over


def take_over_s(
    shards: int, nodes: int, workers: int, at_once: int, random: Random, costs: Costs = MEASURED
) -> tuple[float, float]:
    """Return the times from the death of a node until the first and the last of its shards are served.

    `at_once`: how many nodes the database serves in parallel.
    """
    places = addresses(nodes, random)
    gone, *living = places
    orphans = [id for id, address in placed(shards, places).items() if address == gone]
    share = Counter(choose_node(id, living) for id in orphans)
    known_s = detected_ms(nodes, LEASE_MS, refresh_interval_ms(LEASE_MS), random) / 1_000
    per_shard = workers / shards
    busy = sum(taken_s(count, count * per_shard, costs) for count in share.values()) / at_once
    longest = max((taken_s(count, count * per_shard, costs) for count in share.values()), default=0.0)
    few = min(ACQUIRE_BATCH_SIZE, max(share.values(), default=0))
    return known_s + taken_s(few, few * per_shard, costs), known_s + max(busy, longest)


# -- tables


def show(title: str, names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    print(f"\n{title}\n")
    widths = [max(len(name), *(len(_text(row[at])) for row in rows)) for at, name in enumerate(names)]
    print("| " + " | ".join(name.rjust(width) for name, width in zip(names, widths, strict=True)) + " |")
    print("|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|")
    for row in rows:
        cells = (_text(value).rjust(width) for value, width in zip(row, widths, strict=True))
        print("| " + " | ".join(cells) + " |")


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def movement_rows(random: Random) -> list[list[object]]:
    rows: list[list[object]] = []
    for shards, nodes in (
        (64, 3),
        (64, 10),
        (256, 3),
        (256, 10),
        (256, 30),
        (1_024, 30),
        (4_096, 30),
        (4_096, 100),
    ):
        runs = [movement(shards, nodes, random) for _ in range(3)]
        rows.append(
            [
                shards,
                nodes,
                shards // nodes,
                statistics.mean(run.joined for run in runs) * (nodes + 1),
                statistics.mean(run.left for run in runs) * nodes,
                sum(run.needless for run in runs),
                statistics.mean(run.imbalance for run in runs),
                max(run.imbalance for run in runs),
            ]
        )
    return rows


def detection_rows(random: Random) -> list[list[object]]:
    rows: list[list[object]] = []
    for nodes, lease_ms, every_ms in (
        (3, 4_000, 500), (10, 4_000, 500), (50, 4_000, 500), (3, 4_000, 1_000), (3, 4_000, 50), (3, 2_000, 250),
        (3, 10_000, 500),
    ):  # fmt: skip
        runs = [detected_ms(nodes, lease_ms, every_ms, random) / 1_000 for _ in range(20)]
        rows.append([nodes, lease_ms / 1_000, every_ms, min(runs), statistics.median(runs), max(runs)])
    return rows


def take_over_rows(random: Random) -> list[list[object]]:
    rows: list[list[object]] = []
    for workers, shards, nodes in (
        (1_000, 16, 3), (1_000, 64, 3), (1_000, 256, 3), (100_000, 64, 3), (1_000_000, 256, 6), (1_000_000, 256, 20),
        (1_000_000, 1_024, 20), (10_000_000, 1_024, 60), (10_000_000, 4_096, 60),
    ):  # fmt: skip
        runs = [take_over_s(shards, nodes, workers, 4, random) for _ in range(5)]
        rows.append(
            [
                workers,
                shards,
                nodes,
                statistics.median(r[0] for r in runs),
                statistics.median(r[1] for r in runs),
                max(r[1] for r in runs),
            ]
        )
    return rows


PLANNED = ((100_000, 64), (1_000_000, 256), (10_000_000, 1_024))
"""Workers, and the number of shards for them."""


def plans() -> list[CapacityPlan]:
    return [
        plan(workers, interval_s, how, shards)
        for workers, shards in PLANNED
        for interval_s in (10, 30)
        for how in MEASURED.node_us
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scaling_simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=SEED)
    random = Random(parser.parse_args().seed)
    show(
        "Shards that move, against the ideal (1 / nodes), and how evenly they lie; three clusters each",
        (
            "shards",
            "nodes",
            "shards per node",
            "join / ideal",
            "leave / ideal",
            "moved needlessly",
            "max / mean",
            "worst",
        ),
        movement_rows(random),
    )
    show(
        "Seconds from a node's death until the last of the others knows; 20 deaths each",
        ("nodes", "lease s", "look every ms", "least", "median", "most"),
        detection_rows(random),
    )
    show(
        "Seconds from a node's death until its shards serve; the database takes four nodes side by side",
        ("workers", "shards", "nodes", "first shards", "last shard", "worst"),
        take_over_rows(random),
    )
    show(
        "What heartbeats need",
        ("workers", "every s", "sent", "shards", "beats/s", "beats per row", "rows/s", "nodes", "frontends", "GB per node", "WAL MB/s", "PostgreSQL cores", "cores for looks"),
        [
            (p.workers, p.interval_s, p.how, p.shards, round(p.heartbeats_per_s), p.heartbeats_per_row, round(p.rows_per_s), p.nodes, p.frontends, p.memory_bytes_per_node / 1e9, p.wal_bytes_per_s / 1e6, p.postgres_processors, p.looks_processors)
            for p in plans()
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
