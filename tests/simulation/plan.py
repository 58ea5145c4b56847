"""What a seed stands for: the size of the world, the faults that exist in it, and their frequency.

Seeds differ in kind, not only in their random numbers: some worlds have no partitions, some have nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

FORGETTING = "operator forgets workers"
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
    "most workers cut off",
    "operator releases storms",
    FORGETTING,
)


STARVE = "starve node"
MANY_NODES = ("cut nodes apart",)
ONE_NODE = ("disk fails",)
"""Faults that exist only in worlds with one node."""


@dataclass(frozen=True)
class StormSettings:
    """The operator's settings for storms."""

    min_workers: int = 20
    hold_ms: int = 3_600_000
    pace: int = 1_000

    def holds_ms(self, lease_ms: int) -> int:
        """Return by how much a storm may postpone the end of a lease, not counting the paced queue."""
        return min(self.hold_ms, lease_ms)

    def line_s(self, workers: int) -> float:
        return workers / self.pace if self.pace else 0.0


@dataclass(frozen=True)
class Plan:
    nodes_max: int
    shards: int
    workers: int
    namespaces: int
    busy_s: float
    """The time in which faults occur; then everything heals."""
    every_s: float
    """The mean time between two faults."""
    acts: tuple[str, ...]
    grace_ms: int
    node_lease_ms: int
    commit_interval_ms: float
    checkpoint_ms: int
    leases_ms: tuple[int, ...]
    workers_who_work: float
    """The share of workers that run activities; the others only send heartbeats."""
    cleanup_delay_ms: int
    quota: int
    """Workers per namespace."""
    deaths_max: int
    """An activity is quarantined after this many of its workers have died."""
    storm_settings: StormSettings
    disconnect_graces_ms: tuple[int, ...] = ()
    """The disconnect graces that workers ask for. Empty in worlds without streams."""
    checks_declared_bindings: bool = True
    """Whether nodes find bindings that contradict the activity, as long as they are not overloaded."""
    has_time_limits: bool = False
    """Whether some activities have time limits, and some attempts get stuck."""
    only: tuple[int, ...] | None = None
    """Numbers of the faults that take place; None for all."""


STORM_SETTINGS = (
    StormSettings(),
    StormSettings(),
    StormSettings(hold_ms=0),
    StormSettings(min_workers=3),
    StormSettings(min_workers=3, pace=4),
    StormSettings(min_workers=2, hold_ms=700, pace=20),
)
STREAMS = (6, 8, 9)
"""The last digits of the seeds whose workers keep streams open."""
LAST_SEED_WITHOUT_LIMITS = 80
LARGE_EVERY = 40
"""Each seed that is a multiple of this has a large fleet."""
STARVED_EVERY = 9
"""In each seed that is a multiple of this, nothing happens but that nodes lack processor time."""


def plan_of(seed: int) -> Plan:
    random = Random(f"plan {seed}")
    nodes = random.choice((1, 1, 2, 2, 3, 3, 4))
    streams = Random(f"streams {seed}")
    if has_streams := seed % 10 in STREAMS:
        nodes = streams.choice((1, 1, 2, 3))
    workers = random.choice((3, 6, 10, 20))
    senseless = MANY_NODES if nodes == 1 else ONE_NODE
    acts = tuple(act for act in ACTS if act != FORGETTING and random.random() < 0.6 and act not in senseless)
    if Random(f"starve {seed}").random() < 0.4 and "most workers cut off" not in acts:
        acts = (*acts, STARVE)
    if nodes == 1:
        acts = tuple(dict.fromkeys((*acts, *ONE_NODE)))
    # Drawn apart, so that the other draws mean for each seed what they always did.
    if Random(f"forgetting {seed}").random() < 0.5:
        acts = (*acts, FORGETTING)
    namespaces = random.choice((1, 2))
    plan = Plan(
        nodes_max=nodes,
        shards=random.choice((1, 2, 4, 8)),
        workers=workers,
        namespaces=namespaces,
        busy_s=random.choice((6.0, 10.0, 16.0)),
        every_s=random.choice((0.2, 0.4, 1.0)),
        acts=acts,
        grace_ms=random.choice((0, 500, 2_000, 5_000)),
        node_lease_ms=random.choice((1_500, 2_500, 4_000)),
        commit_interval_ms=random.choice((0.0, 20.0)),
        checkpoint_ms=random.choice((1_000, 5_000, 20_000)),
        leases_ms=random.choice(((1_000,), (1_000, 2_000), (2_000, 4_000), (1_000, 3_000, 6_000))),
        workers_who_work=1.0,
        cleanup_delay_ms=random.choice((2_000, 10_000, 3_600_000)),
        quota=random.choice((1_000_000, max(2, workers // namespaces - 1))),
        deaths_max=random.choice((2, 3)),
        storm_settings=random.choice(STORM_SETTINGS),
        checks_declared_bindings=seed % 4 == 0,
        # Drawn apart, and not for the seeds that find the flaws of leases: more messages change what follows.
        has_time_limits=Random(f"limits {seed}").random() < 0.35 and seed > LAST_SEED_WITHOUT_LIMITS,
    )
    if seed % LARGE_EVERY != 0 and seed % STARVED_EVERY == 0:
        return _starved(plan)
    if has_streams:
        plan = _with_streams(plan, streams)
    return _large(plan, random) if seed % LARGE_EVERY == 0 else plan


def _starved(plan: Plan) -> Plan:
    """Nothing but a lack of processor time: no live worker may lose its lease for it. There is one node, because an owner
    cannot know of heartbeats that wait at another node."""
    return replace(
        plan,
        nodes_max=1,
        acts=(STARVE,),
        every_s=2.0,
        workers=max(plan.workers, 10),
        quota=1_000_000,
        grace_ms=0,
    )


def _with_streams(plan: Plan, random: Random) -> Plan:
    """Let workers keep streams open, with leases longer than their graces, and servers die.

    There are no storms: how many workers are due to die would depend on the streams that each node saw break."""
    return replace(
        plan,
        disconnect_graces_ms=random.choice(((300,), (300, 800), (800, 2_000))),
        leases_ms=random.choice(((2_000, 4_000), (3_000, 6_000))),
        storm_settings=StormSettings(hold_ms=0),
        acts=tuple(dict.fromkeys((*plan.acts, "kill node", "cut worker off"))),
    )


def _large(plan: Plan, random: Random) -> Plan:
    """Give the world hundreds of workers; all send heartbeats and few run activities, because leases make a fleet large."""
    return replace(
        plan,
        workers=random.randrange(200, 401),
        nodes_max=random.choice((2, 3)),
        busy_s=6.0,
        every_s=1.0,
        leases_ms=(5_000, 10_000),
        quota=1_000_000,
        workers_who_work=0.05,
        storm_settings=random.choice((StormSettings(), StormSettings(pace=100))),
        acts=tuple(dict.fromkeys((*plan.acts, "most workers cut off", "kill node"))),
    )


@dataclass(frozen=True)
class PlanOverrides:
    """Values that replace those of the seed."""

    workers: int = 0
    nodes: int = 0
    shards: int = 0
    only: tuple[int, ...] | None = None

    def plan(self, seed: int) -> Plan:
        usual = plan_of(seed)
        return replace(
            usual,
            workers=self.workers or usual.workers,
            nodes_max=self.nodes or usual.nodes_max,
            shards=self.shards or usual.shards,
            only=self.only,
        )

    def options(self) -> list[str]:
        """Return these overrides as options of `make sim`."""
        given = {"workers": self.workers, "nodes": self.nodes, "shards": self.shards}
        options = [f"--{name} {number}" for name, number in given.items() if number]
        if self.only is not None:
            options.append(f"--only {','.join(map(str, self.only)) or 'none'}")
        return options


NO_OVERRIDES = PlanOverrides()


def overrides_from(seed: int, plan: Plan) -> PlanOverrides:
    usual = plan_of(seed)
    return PlanOverrides(
        plan.workers if plan.workers != usual.workers else 0,
        plan.nodes_max if plan.nodes_max != usual.nodes_max else 0,
        plan.shards if plan.shards != usual.shards else 0,
        plan.only,
    )
