"""A machine with a liveness server: production's `Server`, started again whenever it ends."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from liveness.app import Server
from liveness.config.settings import Settings
from liveness.domain.errors import LivenessError
from liveness.server.direct_connections import OwnAddresses
from liveness.server.platform import Platform
from liveness.store.errors import StoreError
from tests.simulation.clocks import SimulatedClock
from tests.simulation.database import Health, NodeDatabase
from tests.simulation.loop import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

START_AGAIN_S = 1.0


class SimulatedAddresses(OwnAddresses):
    """The address of a simulated server. Nothing stands between a server and its clients."""

    def __init__(self, listen: str) -> None:
        self._listen = listen

    def contain(self, addresses: Sequence[str], network: str) -> bool:
        return list(addresses) == [self._listen]


class NodeHost:
    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.host = f"node{number}"
        self.address = f"{self.host}:7400"
        self.cluster_address = f"{self.host}:8400"
        self.health = Health()
        self.server: Server | None = None
        self.process: Process | None = None
        self.clock = SimulatedClock(
            world.loop, 1 + world.random.uniform(-0.001, 0.001), world.random.randrange(10**7)
        )
        self.wanted = True
        """Whether the server is to be started again."""
        self.died_at: float | None = None
        """When the server's process ended; None while there is one."""
        self._runs = 0

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.alive

    def start(self) -> None:
        world = self.world
        self._runs += 1
        self.died_at = None
        process = self.process = world.process(f"{self.host}#{self._runs}", self.host)
        process.on_death.append(lambda: self._died(process))
        world.listening_time.back(self.host, world.now())
        world.note(f"{self.host} starts", self.host)
        process.spawn(self._run(process))

    async def _run(self, process: Process) -> None:
        world, plan = self.world, self.world.plan
        server = Server(
            Settings(
                db="postgresql://simulated/liveness" if plan.nodes_max > 1 else "sqlite:///simulated.db",
                listen=self.address,
                insecure=True,
                shards=plan.shards,
                reflection=False,
                takeover_grace_ms=plan.grace_ms,
                node_lease_ms=plan.node_lease_ms,
                commit_interval_ms=plan.commit_interval_ms,
                task_attempts_max=1_000,
            ),
            clock=self.clock,
            random=Random(world.random.random()),
            platform=Platform(
                host=self.host,
                process_id=self._runs,
                machine="",
                listener=world.network.listener,
                connect=world.network.connect,
                own_addresses=SimulatedAddresses,
                database=lambda _, owner: NodeDatabase(world.database, process, owner, self.health),
                runs_maintenance=False,
            ),
        )
        try:
            await server.start()
        except (StoreError, LivenessError) as error:
            world.note(f"{self.host} could not start: {error}", self.host)
            process.kill()
            return
        if not plan.checks_declared_bindings:
            server.declared_bindings.pending_max = 0
        self.server = server
        world.note(f"{self.host} serves", self.host)
        process.spawn(self._run_maintenance(server))
        broken = await server.node.broken
        detail = str(broken)
        if "internal error" in detail:
            world.report("no crash", f"{self.host}: {detail}", (self.host,))
        world.sometimes("disk failed, process ended")
        process.kill()

    async def _run_maintenance(self, server: Server) -> None:
        """Run the maintenance that the scheduler would run."""
        while True:
            for _ in range(5):
                await self.clock.sleep(self.world.plan.checkpoint_ms)
                await server.maintenance._run_job(server.maintenance.checkpoint)
            await server.maintenance._run_job(server.maintenance.apply_retention)

    def _died(self, process: Process) -> None:
        world = self.world
        if self.process is not process:
            return
        self.server = None
        self.process = None
        self.died_at = world.now()
        world.listening_time.away(self.host, world.now())
        world.note(f"{self.host} is dead", self.host)
        if process.stopped:
            world.listening_time.back(self.host, world.now())
        if self.wanted:
            world.later(START_AGAIN_S * world.random.uniform(0.1, 3), self._again)

    def _again(self) -> None:
        if self.process is None and self.wanted:
            self.start()

    # -- faults

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    def suspend(self, seconds: float) -> None:
        process, world = self.process, self.world
        if process is None or process.stopped:
            return
        process.stop()
        world.listening_time.away(self.host, world.now())
        world.later(seconds, lambda: self._resume(process))

    def _resume(self, process: Process) -> None:
        if process.alive and process.stopped:
            self.world.listening_time.back(self.host, self.world.now())
            process.resume()
            self.world.note(f"{self.host} continues", self.host)

    def starve(self, service_s: float) -> None:
        """Let each message wait for the process, which gets to one in `service_s`."""
        for address in (self.address, self.cluster_address):
            if (listener := self.world.network.at(address)) is not None:
                listener.service_s = service_s

    def leave(self) -> None:
        server, process = self.server, self.process
        if server is None or process is None:
            return
        self.server = None
        process.spawn(self._leave(server, process))

    async def _leave(self, server: Server, process: Process) -> None:
        await server.stop()
        self.world.note(f"{self.host} has shut down gracefully", self.host)
        process.kill()
