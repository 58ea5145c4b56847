"""What a seed means: how large the world is, what may befall it, and how often. Different seeds differ in kind, not only
in the dice that are rolled: some worlds know no partitions, some nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

ACTS = (
    "kill node",
    "stop node",
    "leave in order",
    "cut node from database",
    "cut nodes apart",
    "cut worker off",
    "slow database",
    "commits fail",
    "disk fails",
    "messages lost",
    "messages doubled",
    "messages straggle",
    "wall clock jumps",
    "kill worker",
    "stop worker",
    "worker says goodbye",
    "second run of a worker",
    "all workers of a host stop",
)


@dataclass(frozen=True)
class Plan:
    nodes_max: int
    shards: int
    workers: int
    namespaces: int
    busy_s: float
    """How long things happen; then everything heals."""
    every_s: float
    """Between two acts, on average."""
    acts: tuple[str, ...]
    grace_ms: int
    node_lease_ms: int
    commit_interval_ms: float
    checkpoint_ms: int
    leases_ms: tuple[int, ...]
    cleanup_delay_ms: int
    quota: int
    """Workers per namespace."""


def plan_of(seed: int, size: float = 1.0) -> Plan:
    random = Random(f"plan {seed}")
    nodes = random.choice((1, 1, 2, 3, 3, 4))
    workers = max(2, int(random.choice((3, 6, 10, 20)) * size))
    if random.random() < 0.02:
        workers = int(200 * size)
    acts = tuple(act for act in ACTS if random.random() < 0.6) or ACTS
    namespaces = random.choice((1, 2))
    return Plan(
        nodes_max=nodes,
        shards=random.choice((1, 4, 8, 16)),
        workers=workers,
        namespaces=namespaces,
        busy_s=random.choice((8.0, 15.0, 25.0)) * min(1.0, size),
        every_s=random.choice((0.2, 0.5, 1.5)),
        acts=acts,
        grace_ms=random.choice((0, 500, 2_000, 5_000)),
        node_lease_ms=random.choice((1_000, 2_000, 4_000)),
        commit_interval_ms=random.choice((0.0, 20.0)),
        checkpoint_ms=random.choice((1_000, 5_000, 20_000)),
        leases_ms=random.choice(((1_000,), (1_000, 2_000), (2_000, 5_000), (1_000, 3_000, 10_000))),
        cleanup_delay_ms=random.choice((2_000, 10_000, 3_600_000)),
        quota=random.choice((1_000_000, max(2, workers // namespaces - 1))),
    )
