"""The components of one group, and the orders to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from pathlib import Path

from liveness.clock import Clock
from liveness.domain.component import (
    STATUSES_WITH_PROCESS,
    Component,
    ComponentStatus,
    OrderAction,
    component_id,
    index_of,
)
from liveness.sdk.loop_client import RpcFailure
from liveness.supervisor.errors import SupervisorError
from liveness.supervisor.launcher_client import Launcher
from liveness.supervisor.order_loop import OrderLoop
from liveness.supervisor.output_log import LogSettings, OutputLog
from liveness.supervisor.process_identity import signal_marked
from liveness.supervisor.server_link import GroupLock, ServerLink
from liveness.supervisor.sessions import Session
from liveness.supervisor.settings import GroupSettings
from liveness.supervisor.state_machine import ComponentMachine
from liveness.supervisor.supervised_component import SupervisedComponent
from liveness.v1.component_pb2 import ComponentOrder
from liveness.v1.worker_pb2 import HeartbeatResult

logger = logging.getLogger("liveness.supervisor")

WELL = (ComponentStatus.HEALTHY, ComponentStatus.PAUSED)
MARK = "LIVENESS_SUPERVISOR_ID"
"""In the environment of all processes of a group: the session of their supervisor. The next supervisor finds by it what is left."""
LEFTOVER_POLL_MS = 50
ACQUIRE_AGAIN_MS = 3_600_000


class Group:
    def __init__(
        self,
        settings: GroupSettings,
        link: ServerLink,
        launcher: Launcher,
        clock: Clock,
        environment: Mapping[str, str],
        output_directory: Path,
        on_changed: Callable[[], None],
        on_lost: Callable[[str], None],
    ) -> None:
        """`on_lost`: another supervisor has taken the group."""
        self.settings = settings
        self.components: dict[int, SupervisedComponent] = {}
        self._link = link
        self._launcher = launcher
        self._clock = clock
        self._environment = environment
        self._output_directory = output_directory
        self._on_changed = on_changed
        self._on_lost = on_lost
        self._session: Session | None = None
        self._orders: asyncio.Task[None] | None = None
        self._lock: GroupLock | None = None
        self._changed = asyncio.Event()
        """Set, and replaced, at each change of a component's status."""
        self._leaving: dict[int, SupervisedComponent] = {}
        """Components above the number that shall run, until they have stopped."""
        self._scaling = asyncio.Lock()
        self._is_ending = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def name(self) -> str:
        return self.settings.name

    async def begin(self, lock_path: Path, wait_ms: int) -> None:
        """Take the group, continue what an earlier supervisor left, and start its processes. Raises SupervisorError."""
        self._lock = GroupLock(lock_path, self.name)
        last = await self._link.last_supervisor(self.name)
        self._session = await self._link.acquire_group(self.settings, self, self._lock, wait_ms)
        if last is not None and last.session_id:
            await self._end_leftovers(last.session_id)
        self._environment = {**self._environment, MARK: self._session.session_id}
        known = await self._link.read_components(self.name)
        for index in range(self.settings.processes):
            component = self._add(index)
            if index in known:
                component.continue_from(known[index])
        self._hear_orders(self._session)
        for component in self.components.values():
            component.begin()
        self._stop_surplus(known)

    def _hear_orders(self, session: Session) -> None:
        if self._orders is not None:
            self._orders.cancel()
        loop = OrderLoop(
            self._link.client, self._link.namespace, self._clock, session, self.carry_out, self.read_output
        )
        self._orders = asyncio.get_running_loop().create_task(loop.run())

    async def _end_leftovers(self, session_id: str) -> None:
        """Processes end with their supervisor, and get the time that they have for a stop. Some are left if their launcher was
        killed with it, and they ignore the signal of the kernel."""
        marks = (f"{MARK}={session_id}".encode(),)
        deadline_ms = self._clock.monotonic_ms() + self.settings.stop_timeout_ms
        while signal_marked(marks, 0) and self._clock.monotonic_ms() < deadline_ms:
            await self._clock.sleep(LEFTOVER_POLL_MS)
        if killed := signal_marked(marks):
            logger.warning("killed %s processes that the last supervisor of %s left", killed, self.name)

    def _stop_surplus(self, known: Mapping[int, Component]) -> None:
        """An earlier supervisor ran more processes, and has not told of their end."""
        surplus = [
            index
            for index, component in known.items()
            if index >= self.settings.processes
            and component.status in (*STATUSES_WITH_PROCESS, ComponentStatus.CRASHED)
        ]
        for index in surplus:
            component = self._add(index)
            del self.components[index]
            component.continue_from(known[index])
            component.stop("", "the group has fewer processes now")
            self._leaving[index] = component
        if surplus:
            self._keep(self._forget_left(surplus))

    def _keep(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _add(self, index: int) -> SupervisedComponent:
        settings = self.settings
        component = self.components[index] = SupervisedComponent(
            component_id(self.name, index),
            index,
            settings,
            self._link,
            self._launcher,
            OutputLog(self._log_settings(), self.name, index, self._clock),
            self._clock,
            self._environment,
            self._on_component_changed,
        )
        return component

    def _log_settings(self) -> LogSettings:
        output = self.settings.output
        return LogSettings(self._output_directory, output.max_bytes, output.files)

    # -- orders

    async def carry_out(self, order: ComponentOrder) -> None:
        """Returns when the components are in the state that was ordered, or cannot get there, and the server knows it: who waits
        for the order asks next what came of it."""
        chosen = self._chosen(order.component_ids)
        await self._carry_out(order, chosen)
        await asyncio.gather(*(component.flush_reports() for component in chosen))

    async def _carry_out(self, order: ComponentOrder, chosen: list[SupervisedComponent]) -> None:
        action = OrderAction(int(order.action))
        by, reason = order.by, order.reason
        logger.info(
            "order %s: %s %s%s", order.number, action.name.lower(), self.name, f" by {by}" if by else ""
        )
        match action:
            case OrderAction.RESTART:
                for component in chosen:
                    component.restart(by, reason)
                await self._settled(chosen)
            case OrderAction.ROLLING_RESTART:
                await self._restart_one_by_one(chosen, by, reason)
            case OrderAction.STOP:
                for component in chosen:
                    component.stop(by, reason)
                await self._wait(lambda: all(component.machine.is_at_rest for component in chosen))
            case OrderAction.START:
                for component in chosen:
                    component.start(by, reason)
                await self._settled(chosen)
            case OrderAction.PAUSE:
                for component in chosen:
                    component.pause(by, reason)
            case OrderAction.RESUME:
                for component in chosen:
                    component.resume(by, reason)
            case OrderAction.RESET:
                for component in chosen:
                    component.reset(by, reason)
                await self._settled([each for each in chosen if each.machine.wanted])
            case OrderAction.SCALE:
                await self.scale(order.count, by, reason)

    def _chosen(self, ids: Iterable[str]) -> list[SupervisedComponent]:
        indexes = [index for id in ids if (index := index_of(id)) is not None]
        if not indexes:
            return list(self.components.values())
        for index in indexes:
            if index not in self.components:
                logger.warning("%s does not run here", component_id(self.name, index))
        return [self.components[index] for index in indexes if index in self.components]

    async def scale(self, processes: int, by: str = "", reason: str = "") -> None:
        """Start the processes that are missing, or stop those with the highest numbers. One after the other: a component that
        still stops must not get a second process."""
        async with self._scaling:
            await self._scale(processes, by, reason)
        await self._settled(list(self.components.values()))

    async def _scale(self, processes: int, by: str, reason: str) -> None:
        added = [index for index in range(processes) if index not in self.components]
        await self._wait(lambda: self._leaving.keys().isdisjoint(added))
        known = await self._link.read_components(self.name) if added else {}
        if self._is_ending:
            return
        for index in added:
            component = self._add(index)
            if index in known:
                component.continue_from(known[index])
            component.begin()
            component.start(by, reason or "the group was scaled")
        leaving = {index: each for index, each in self.components.items() if index >= processes}
        for index, component in leaving.items():
            del self.components[index]
            self._leaving[index] = component
            component.stop(by, reason or "the group was scaled")
        await self._wait(lambda: all(component.machine.is_at_rest for component in leaving.values()))
        await self._forget_left(leaving)

    async def _forget_left(self, indexes: Iterable[int]) -> None:
        """Let go of components that have stopped, when this was reported."""
        for index in indexes:
            component = self._leaving[index]
            await component.flush_reports()
            component.close()
            del self._leaving[index]
        self._notice()

    async def _restart_one_by_one(self, chosen: list[SupervisedComponent], by: str, reason: str) -> None:
        """Go on only while the new processes become healthy: what breaks the first must not break them all. A component that
        was ordered to stop meanwhile is left alone, because that order is newer."""
        stops = [component.stops for component in chosen]
        for number, component in enumerate(chosen, start=1):
            if component.stops != stops[number - 1]:
                continue
            component.restart(by, reason)
            machine = component.machine
            await self._wait(partial(_is_well_or_at_rest, machine))
            if machine.status is ComponentStatus.FAILED:
                left = len(chosen) - number
                logger.error("%s failed, so %s processes were not restarted", component.id, left)
                return

    async def _settled(self, chosen: list[SupervisedComponent]) -> None:
        """Wait until each runs well, or this start has failed."""
        settled = (*WELL, ComponentStatus.FAILED, ComponentStatus.CRASHED)
        await self._wait(
            lambda: all(
                each.machine.is_at_rest or (each.machine.status in settled and not each.machine.is_asked)
                for each in chosen
            )
        )

    async def _wait(self, is_reached: Callable[[], bool]) -> None:
        while not is_reached():
            await self._changed.wait()

    def change_settings(self, settings: GroupSettings) -> None:
        """New limits apply at once; a new command applies to the next process."""
        if self._session is not None:
            self._session.change_lease(settings.lease_ms)
        self.settings = settings
        for component in self.components.values():
            component.change_settings(settings, self._log_settings())

    def restart_all(self, reason: str) -> None:
        for component in self.components.values():
            if component.machine.wanted:
                component.restart("", reason)

    def read_output(self, id: str, lines: int, after: str) -> tuple[list[str], str]:
        index = index_of(id)
        component = None if index is None else self.components.get(index) or self._leaving.get(index)
        return ([], "") if component is None else component.output.read_lines(lines, after)

    # -- the end

    async def shut_down(self) -> None:
        """Stop all processes, in parallel."""
        self._is_ending = True
        for component in self._all():
            component.shut_down()
        await self._wait(lambda: all(component.machine.is_at_rest for component in self._all()))

    def kill(self) -> None:
        for component in self._all():
            component.kill()

    async def close(self, report_ms: int) -> None:
        """Report what is left to report, and give the group back."""
        try:
            async with asyncio.timeout(report_ms / 1_000):
                await asyncio.gather(*(component.flush_reports() for component in self._all()))
                if self._session is not None and not self._session.is_over:
                    await self._link.release_group(self._session)
        except TimeoutError:
            logger.warning("%s: the server does not answer; some reports are lost", self.name)
        self.abandon()

    def abandon(self) -> None:
        for task in (*self._tasks, *((self._orders,) if self._orders is not None else ())):
            task.cancel()
        for component in self._all():
            component.close()
        if self._lock is not None:
            self._lock.release()

    @property
    def has_problem(self) -> bool:
        """Whether a component failed, or did not end well."""
        return any(
            component.machine.unclean or component.machine.status is ComponentStatus.FAILED
            for component in self._all()
        )

    @property
    def is_done(self) -> bool:
        """No process runs, and none will without an order."""
        return all(component.machine.is_at_rest for component in self._all())

    def _all(self) -> list[SupervisedComponent]:
        return [*self.components.values(), *self._leaving.values()]

    # -- what happens to it

    def on_answer(self, result: HeartbeatResult) -> None:
        pass

    def on_refused(self, failure: RpcFailure) -> None:
        if self._is_ending:
            return
        if failure.reason == "WORKER_CLEANED_UP":
            self._keep(self._acquire_again())
        else:
            logger.error("another supervisor has taken the group %s: %s", self.name, failure)
            self._on_lost(self.name)

    async def _acquire_again(self) -> None:
        """The server was out of reach for so long that it has cleaned this supervisor up."""
        assert self._lock is not None
        try:
            self._session = await self._link.acquire_group(self.settings, self, self._lock, ACQUIRE_AGAIN_MS)
        except SupervisorError as error:
            logger.error("the group %s cannot be taken again: %s", self.name, error)
            self._on_lost(self.name)
        else:
            logger.info("the server had forgotten the supervisor of %s, and knows it again", self.name)
            self._hear_orders(self._session)

    def _on_component_changed(self, component: SupervisedComponent) -> None:
        self._notice()

    def _notice(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        self._on_changed()


def _is_well_or_at_rest(machine: ComponentMachine) -> bool:
    return machine.is_at_rest or (machine.status in WELL and not machine.is_asked)
