"""Injects one fault after the other, and heals each again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.audit import ACTIVE
from tests.simulation.database import TransactionFault
from tests.simulation.labels import worker_label
from tests.simulation.plan import STARVE

if TYPE_CHECKING:
    from tests.simulation.node_host import NodeHost
    from tests.simulation.worker import Run
    from tests.simulation.world import World

HOUR_MS = 3_600_000


class FaultInjector:
    def __init__(self, world: World) -> None:
        self._world = world
        self._random = Random(f"director {world.seed}")
        self._broken = 0
        self._over = False
        self._acts: dict[str, Callable[[], None]] = {
            "kill node": self._kill_node,
            "stop node": self._stop_node,
            STARVE: self._starve_node,
            "leave in order": self._leave_in_order,
            "cut node from database": self._cut_from_database,
            "cut nodes apart": self._cut_nodes,
            "cut worker off": self._cut_worker,
            "slow database": self._slow_database,
            "commits fail": self._fail_commits,
            "disk fails": self._fail_disk,
            "messages lost": self._lose_messages,
            "messages doubled": self._double_messages,
            "messages straggle": self._straggle,
            "wall clock jumps": self._jump,
            "kill worker": self._kill_worker,
            "stop worker": self._stop_worker,
            "worker says goodbye": self._goodbye,
            "second run of a worker": self._second_run,
            "all workers of a host stop": self._stop_many,
            "most workers cut off": self._cut_most,
            "operator releases storms": self._release_storms,
            "operator forgets workers": self._forget_workers,
        }

    async def act(self) -> None:
        """Run until the end of the busy time.

        Each fault has its own random numbers, so leaving one out does not change the others.
        """
        world, plan, dice = self._world, self._world.plan, Random(f"director {self._world.seed}")
        until = world.now() + plan.busy_s
        for number in count(1):
            await asyncio.sleep(dice.expovariate(1 / plan.every_s))
            if world.now() > until:
                break
            act = dice.choice(plan.acts)
            self._random = Random(f"act {world.seed} {number}")
            if plan.only is None or number in plan.only:
                world.outcome.acted.append(number)
                world.outcome.acts[act] += 1
                self._acts[act]()
        self._over = True

    def _for_a_while(self, seconds: float, heal: Callable[[], None]) -> None:
        """Count something as broken for this time, then heal it."""
        world = self._world
        self._broken += 1
        world.calm_since = float("inf")

        def mend() -> None:
            heal()
            self._broken -= 1
            if not self._broken:
                world.calm_since = world.now()

        world.later(seconds, mend)

    def _disturb(self) -> None:
        """Count a momentary fault."""
        self._for_a_while(0.001, lambda: None)

    def _node_host(self) -> NodeHost:
        return self._random.choice(self._world.node_hosts)

    def _run(self) -> Run | None:
        """Return a random worker's latest run, if one is alive."""
        runs = [runs[-1] for runs in self._world.runs.values() if runs and runs[-1].process.alive]
        return self._random.choice(runs) if runs else None

    def _some(self, low: float, high: float) -> float:
        """Return a random duration, often short and sometimes long."""
        return low * (high / low) ** self._random.random()

    # -- nodes

    def _kill_node(self) -> None:
        node_host = self._node_host()
        self._world.note(f"kill -9 {node_host.host}", node_host.host)
        node_host.kill()
        self._for_a_while(5, lambda: None)

    def _stop_node(self) -> None:
        node_host, seconds = self._node_host(), self._some(0.05, 15)
        self._world.note(f"{node_host.host} is stopped for {seconds:.2f} s", node_host.host)
        if self._random.random() < 0.5:
            node_host.suspend(seconds)
        else:
            # Makes a transaction under way likely.
            node_host.health.delay_s = (0.05, 0.5)
            self._world.later(0.2, lambda: node_host.suspend(seconds))

        def heal() -> None:
            node_host.health.delay_s = (0.000_2, 0.002)

        self._for_a_while(seconds + 0.7, heal)

    def _starve_node(self) -> None:
        """Give the node too little processor time: it gets to each message late, and what arrives waits in its sockets."""
        node_host, seconds, service_s = self._node_host(), self._some(1, 12), self._some(0.005, 0.2)
        self._world.note(
            f"{node_host.host} takes {service_s * 1_000:.0f} ms to get to each message, for {seconds:.2f} s",
            node_host.host,
        )
        node_host.starve(service_s)
        # What waits then is heard a little later.
        self._for_a_while(seconds + 10, lambda: None)
        self._world.later(seconds, lambda: node_host.starve(0.0))

    def _leave_in_order(self) -> None:
        node_host = self._node_host()
        self._world.note(f"SIGTERM {node_host.host}", node_host.host)
        node_host.leave()
        self._for_a_while(8, lambda: None)

    def _cut_from_database(self) -> None:
        world, node_host, seconds = self._world, self._node_host(), self._some(0.1, 12)
        if node_host.host in world.database.cut:
            return
        world.note(f"{node_host.host} is cut off from the database for {seconds:.2f} s", node_host.host)
        world.database.cut[node_host.host] = world.now()
        world.listening_time.away(node_host.host, world.now())

        def heal() -> None:
            world.database.cut.pop(node_host.host, None)
            world.listening_time.back(node_host.host, world.now())

        self._for_a_while(seconds, heal)

    def _cut_nodes(self) -> None:
        one, other = self._node_host(), self._node_host()
        self._cut(one.host, other.host, self._some(0.1, 12))

    def _cut(self, one: str, other: str, seconds: float) -> None:
        world = self._world
        pairs = {(one, other), (other, one)}
        if self._random.random() < 0.4:
            pairs = {(one, other)}
        pairs -= world.network.conditions.cut
        if one == other or not pairs:
            return
        world.note(
            f"{' and '.join(f'{a} to {b}' for a, b in sorted(pairs))}: nothing passes for {seconds:.2f} s",
            one,
            other,
        )
        world.network.conditions.cut |= pairs
        self._for_a_while(seconds, lambda: world.network.conditions.cut.difference_update(pairs))

    def _slow_database(self) -> None:
        node_host, seconds = self._node_host(), self._some(0.5, 8)
        slow_s = self._some(0.05, 4)
        self._world.note(
            f"the database answers {node_host.host} within {slow_s:.2f} s, for {seconds:.2f} s",
            node_host.host,
        )
        node_host.health.delay_s = (0.001, slow_s)

        def heal() -> None:
            node_host.health.delay_s = (0.000_2, 0.002)

        self._for_a_while(seconds + slow_s, heal)

    def _fail_commits(self) -> None:
        node_host, seconds = self._node_host(), self._some(0.1, 4)
        share = self._random.choice((0.02, 0.1, 0.4))
        kinds = [
            TransactionFault.REJECTED,
            TransactionFault.UNKNOWN_LOST,
            TransactionFault.UNKNOWN_DONE,
            TransactionFault.CRASH_BEFORE,
            TransactionFault.CRASH_AFTER,
        ]
        self._random.shuffle(kinds)
        chosen = tuple((kind, share / 2) for kind in kinds[:2])
        self._world.note(
            f"commits of {node_host.host} fail for {seconds:.2f} s: {[kind.value for kind, _ in chosen]}",
            node_host.host,
        )
        node_host.health.transaction_faults = chosen
        node_host.health.reads_fail = share / 4
        if self._random.random() < 0.4:
            # Kills another node, so that this one has to take shards over.
            other = self._node_host()
            if other is not node_host:
                self._world.note(f"kill -9 {other.host}", other.host)
                other.kill()

        def heal() -> None:
            node_host.health.transaction_faults = ()
            node_host.health.reads_fail = 0.0

        self._for_a_while(seconds + 4, heal)

    def _fail_disk(self) -> None:
        node_host = self._node_host()
        if len(self._world.node_hosts) > 1:
            return  # with several nodes, they share the database's disk
        self._world.note(f"the disk of {node_host.host} fails", node_host.host)
        node_host.health.transaction_faults = ((TransactionFault.BROKEN, 1.0),)

        def heal() -> None:
            node_host.health.transaction_faults = ()

        self._for_a_while(0.7, heal)
        self._for_a_while(6, lambda: None)

    # -- network

    def _lose_messages(self) -> None:
        conditions, seconds = self._world.network.conditions, self._some(0.2, 6)
        self._world.note(f"messages get lost for {seconds:.2f} s")
        conditions.loss = self._random.choice((0.01, 0.1, 0.3))
        self._for_a_while(seconds, lambda: setattr(conditions, "loss", 0.0))

    def _double_messages(self) -> None:
        conditions, seconds = self._world.network.conditions, self._some(1, 10)
        self._world.note(f"calls are doubled for {seconds:.2f} s")
        conditions.twice = self._random.choice((0.05, 0.3))
        self._for_a_while(seconds, lambda: setattr(conditions, "twice", 0.0))

    def _straggle(self) -> None:
        conditions, seconds = self._world.network.conditions, self._some(1, 10)
        self._world.note(f"messages straggle for {seconds:.2f} s")
        conditions.straggling = self._random.choice((0.05, 0.3))
        conditions.delay_s = self._random.choice(((0.000_2, 0.002), (0.001, 0.03)))

        def heal() -> None:
            conditions.straggling, conditions.delay_s = 0.0, (0.000_2, 0.002)

        self._for_a_while(seconds, heal)

    def _jump(self) -> None:
        node_host = self._node_host()
        ms = self._random.choice((-HOUR_MS, -1_000, 1_000, HOUR_MS))
        self._world.note(f"the wall clock of {node_host.host} jumps by {ms} ms", node_host.host)
        self._world.sometimes("wall clock jumped while leases ran")
        node_host.clock.wall_offset_ms += ms

    # -- workers

    def _kill_worker(self) -> None:
        if (run := self._run()) is not None:
            self._kill(run)

    def _kill(self, run: Run) -> None:
        world = self._world
        world.note(f"kill -9 {run.session}", worker_label(run.key))
        run.process.kill()
        if self._random.random() < 0.8 and not self._over:
            world.later(self._some(0.001, 8), lambda: self._again(run))

    def _again(self, run: Run) -> None:
        if not self._over and self._world.runs[run.key][-1] is run:
            self._world.begin_run(run.behaviour)

    def _stop_worker(self) -> None:
        if (run := self._run()) is not None:
            self._stop(run, self._some(0.05, 10))

    def _stop(self, run: Run, seconds: float) -> None:
        world = self._world
        world.note(f"{run.session} is stopped for {seconds:.2f} s", worker_label(run.key))
        run.process.stop()
        world.later(seconds, run.process.resume)

    def _stop_many(self) -> None:
        lease_s = self._random.choice(self._world.plan.leases_ms) / 1_000
        seconds = lease_s * self._random.uniform(0.6, 1.1)
        for runs in list(self._world.runs.values()):
            if runs and runs[-1].process.alive and self._random.random() < 0.5:
                self._stop(runs[-1], seconds)

    def _cut_worker(self) -> None:
        if (run := self._run()) is not None:
            self._cut(run.host, self._node_host().host, self._some(0.1, 12))

    def _cut_most(self) -> None:
        """Cut most workers of a namespace off together, as a failed switch does, and reconnect them together."""
        world, cut = self._world, self._world.network.conditions.cut
        namespace = f"ns{self._random.randrange(world.plan.namespaces)}"
        share = self._random.choice((0.5, 0.8, 1.0))
        lease_s = self._random.choice(world.plan.leases_ms) / 1_000
        seconds = lease_s * self._random.uniform(0.9, 2.2)
        keys = [key for key in world.runs if key[0] == namespace and self._random.random() < share]
        hosts = [f"{namespace}-{key}" for _, key in keys]
        pairs = {(host, node_host.host) for host in hosts for node_host in world.node_hosts} - cut
        world.note(
            f"{len(hosts)} workers of {namespace} are cut off from all nodes for {seconds:.2f} s",
            *map(worker_label, keys),
        )
        cut |= pairs
        self._for_a_while(seconds, lambda: cut.difference_update(pairs))
        if len(keys) >= 10 and world.runs[keys[0]]:
            self._kill(world.runs[keys[0]][-1])
        if self._random.random() < 0.4:
            # Kills a node while ended leases are held.
            node_host = self._node_host()
            world.note(f"kill -9 {node_host.host} in {lease_s + 0.2:.2f} s", node_host.host)
            world.later(lease_s + 0.2, node_host.kill)
            self._for_a_while(lease_s + 5, lambda: None)

    def _release_storms(self) -> None:
        namespace = f"ns{self._random.randrange(self._world.plan.namespaces)}"
        self._world.note(f"the operator will release the next storm over {namespace}")
        self._world.storm_checks.to_release[namespace] = self._some(0.05, 1)

    def _forget_workers(self) -> None:
        """Forget the workers that are not ACTIVE, as an operator does who needs their place or their key."""
        world = self._world
        keys = [key for key, worker in world.audit.workers.items() if worker.state != ACTIVE]
        world.note(f"the operator forgets {len(keys)} workers", *map(worker_label, keys))
        for key in keys:
            world.client.forget(*key)

    def _goodbye(self) -> None:
        if (run := self._run()) is None:
            return
        world = self._world
        world.note(f"{run.session} says goodbye", worker_label(run.key))
        away_s = self._some(0.01, 8)

        def gone() -> None:
            run.process.kill()
            if not self._over:
                world.later(away_s, lambda: self._again(run))

        run.say_goodbye(gone)

    def _second_run(self) -> None:
        """Start the program again while the old process still runs, as a zombie from now on."""
        if (run := self._run()) is not None:
            self._world.begin_run(run.behaviour)
