"""The cost model of docs/scaling.md: a few measured costs, and what follows from them for a number of workers."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp

COMMITS_PER_S = 50
"""Of a busy node, which gathers heartbeats for 20 ms (`commit_interval_ms`)."""
LOOKS_PER_S = 2
"""Registry reads of a node, at the default lease of 4 s."""
BUSY = 0.6
"""The share of a processor to plan for; the rest is for take-overs, checkpoints and peaks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Measured with `python -m bench --only cluster` and `python -m bench.unit_costs` on two processors that nodes,
    PostgreSQL and load shared. Replace them with your own.
    """

    node_us: dict[str, float]
    """Processor time of nodes per heartbeat, by the way in which heartbeats arrive."""
    frontend_us: dict[str, float]
    postgres_row_us: float
    """Per renewal row, with the update of the shard's head and its share of a commit of 64 rows."""
    wal_bytes_per_row: float
    """The same, with its index entry."""
    wal_bytes_per_beat: float
    """Added to a row by each further heartbeat."""
    memory_bytes: float
    """Per worker."""
    look_ms: float
    """Processor time of a node for one registry read, whatever it returns."""
    look_us_per_shard: float
    postgres_look_ms: float
    postgres_look_us_per_shard: float
    taken_ms_per_shard: float
    taken_us_per_worker: float


MEASURED = Costs(
    node_us={
        "batches to owners": 14,
        "batches, frontend": 63,
        "unary, frontend": 246,
        "unary to owners": 312,
    },
    frontend_us={
        "batches to owners": 0,
        "batches, frontend": 52,
        "unary, frontend": 400,
        "unary to owners": 0,
    },
    postgres_row_us=40,
    wal_bytes_per_row=410,
    wal_bytes_per_beat=14,
    memory_bytes=1_500,
    look_ms=1.2,
    look_us_per_shard=2.5,
    postgres_look_ms=0.7,
    postgres_look_us_per_shard=0.5,
    taken_ms_per_shard=2.0,
    taken_us_per_worker=40,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPlan:
    """The resources for a number of workers."""

    workers: int
    interval_s: int
    how: str
    shards: int
    heartbeats_per_s: float
    rows_per_s: float
    nodes: int
    """Each needs its own processor: a node uses one."""
    frontends: int
    wal_bytes_per_s: float
    postgres_processors: float
    looks_processors: float
    """Of all nodes together, for registry reads."""
    memory_bytes_per_node: float
    heartbeats_per_row: float


def rows_per_s(heartbeats_per_s: float, shards: int, commits_per_s: float = COMMITS_PER_S) -> float:
    """Return the renewal rows per second.

    All renewals of a shard in one commit are one row. With random arrivals, a commit has no heartbeat for a given
    shard with the probability exp(-mean); the distribution of shards over nodes does not matter.
    """
    chances = commits_per_s * shards
    return chances * (1 - exp(-heartbeats_per_s / chances))


def plan(workers: int, interval_s: int, how: str, shards: int, costs: Costs = MEASURED) -> CapacityPlan:
    beats = workers / interval_s
    rows = rows_per_s(beats, shards)
    nodes = max(1, ceil(beats * costs.node_us[how] / 1e6 / BUSY))
    look_s = (costs.look_ms + costs.look_us_per_shard * shards / 1e3) / 1e3
    return CapacityPlan(
        workers=workers,
        interval_s=interval_s,
        how=how,
        shards=shards,
        heartbeats_per_s=beats,
        rows_per_s=rows,
        nodes=nodes,
        frontends=ceil(beats * costs.frontend_us[how] / 1e6 / BUSY),
        wal_bytes_per_s=rows * costs.wal_bytes_per_row + beats * costs.wal_bytes_per_beat,
        postgres_processors=rows * costs.postgres_row_us / 1e6
        + nodes
        * LOOKS_PER_S
        * (costs.postgres_look_ms / 1e3 + costs.postgres_look_us_per_shard * shards / 1e6),
        looks_processors=nodes * LOOKS_PER_S * look_s,
        memory_bytes_per_node=workers * costs.memory_bytes / nodes,
        heartbeats_per_row=beats / rows,
    )


def taken_s(shards: int, workers: float, costs: Costs = MEASURED) -> float:
    """Return the seconds in which one node reads back this many shards with this many workers altogether."""
    return shards * costs.taken_ms_per_shard / 1e3 + workers * costs.taken_us_per_worker / 1e6
