"""The supervisor: all groups, from their start to their end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from liveness.clock import Clock
from liveness.sdk.loop_client import LivenessClient
from liveness.supervisor.errors import GroupLost, LauncherKilled, StateDirectoryRefused, SupervisorError
from liveness.supervisor.group import Group
from liveness.supervisor.launcher_client import Launcher
from liveness.supervisor.server_link import ServerLink
from liveness.supervisor.settings import GroupSettings, ReloadStep, SupervisorSettings, differences

REPORT_MS = 5_000
"""How long a supervisor that ends waits for a server that does not answer."""

logger = logging.getLogger("liveness.supervisor")


class Supervisor:
    def __init__(
        self,
        settings: SupervisorSettings,
        client: LivenessClient,
        address: str,
        namespace: str,
        clock: Clock,
        state_directory: Path,
        environment: Mapping[str, str],
        on_changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`state_directory`: for locks and output. `on_changed` is called after each change of a component."""
        self.settings = settings
        self.groups: dict[str, Group] = {}
        self.problem: SupervisorError | None = None
        """Why it ended by itself."""
        self._link = ServerLink(client, address, namespace, clock)
        self._clock = clock
        self._state_directory = state_directory
        self._environment = {
            **environment,
            "LIVENESS_ADDRESS": address,
            "LIVENESS_NAMESPACE": namespace,
        }
        self._on_changed = on_changed
        self._launcher: Launcher | None = None
        self._heartbeats: asyncio.Task[None] | None = None
        self.stop_requested = asyncio.Event()
        self._reloading = asyncio.Lock()
        self._reload: asyncio.Task[Any] | None = None
        """The reload that is under way."""
        self._lost: dict[str, asyncio.Task[None]] = {}
        """Groups that another supervisor has taken, while their processes end."""

    @property
    def is_server_away(self) -> bool:
        return self._link.sender.is_server_away

    async def start(self, wait_ms: int) -> None:
        """Take all groups and start their processes. Raises SupervisorError; nothing runs then."""
        # Before anything else: it must be forked from a process without threads of gRPC that hold locks.
        self._launcher = await Launcher.start(_longest_stop_s(self.settings), self._on_launcher_lost)
        self._heartbeats = asyncio.get_running_loop().create_task(self._link.sender.run())
        try:
            async with self._reloading:
                for settings in self.settings.groups:
                    await self._start_group(settings, wait_ms)
        except BaseException:
            await self.stop()
            raise

    async def _start_group(self, settings: GroupSettings, wait_ms: int) -> None:
        assert self._launcher is not None
        directory = Path(settings.output.directory or self._state_directory / "output")
        group = Group(
            settings, self._link, self._launcher, self._clock, self._environment, directory,
            self._on_changed, self._on_group_lost,
        )  # fmt: skip
        self.groups[settings.name] = group
        lock = self._state_directory / self._link.namespace / f"{settings.name}.lock"
        try:
            await group.begin(lock, wait_ms)
        except BaseException:
            await group.close(REPORT_MS)  # nobody else could take it
            del self.groups[settings.name]
            raise
        self._on_changed()

    async def reload(self, settings: SupervisorSettings, wait_ms: int) -> None:
        """Start, stop and change only what differs. Raises SupervisorError if a new group cannot be taken; what was changed
        before stays so, and the next reload goes on from there."""
        async with self._reloading:
            self._reload = asyncio.current_task()
            try:
                await self._take_over(settings, wait_ms)
            finally:
                self._reload = None

    async def _take_over(self, settings: SupervisorSettings, wait_ms: int) -> None:
        assert self._launcher is not None
        self._launcher.change_grace(_longest_stop_s(settings))
        for change in differences(self._running_settings(), settings):
            if self.stop_requested.is_set():
                return
            group = self.groups.get(change.name)
            if ReloadStep.START in change.steps:
                assert change.new is not None
                await self._start_group(change.new, wait_ms)
            elif group is not None and ReloadStep.STOP in change.steps:
                await group.shut_down()
                await group.close(REPORT_MS)
                del self.groups[change.name]
                self._lost.pop(change.name, None)
            elif group is not None and change.new is not None and change.steps:
                group.change_settings(change.new)
                if ReloadStep.COUNT in change.steps:
                    await self._scale(group, change.new)
                if ReloadStep.RESTART in change.steps:
                    group.restart_all("the configuration was read again")
            if change.steps:
                logger.info("group %s: %s", change.name, ", ".join(step.value for step in change.steps))
        self._on_changed()

    async def _scale(self, group: Group, settings: GroupSettings) -> None:
        try:
            await group.scale(settings.processes, reason="the configuration was read again")
        except SupervisorError:
            # The next reload tries it again.
            group.settings = replace(settings, processes=len(group.components))
            raise

    def _running_settings(self) -> SupervisorSettings:
        return SupervisorSettings(tuple(group.settings for group in self.groups.values()))

    async def wait_done(self) -> None:
        """Wait until no process runs or will run without an order."""
        while not all(group.is_done for group in self.groups.values()):
            await self._clock.sleep(200)

    def kill_all(self) -> None:
        for group in self.groups.values():
            group.kill()

    async def stop(self) -> bool:
        """Stop everything, all groups in parallel. Returns whether all ended well."""
        if self._reload is not None:
            # It must not start anything any more.
            self._reload.cancel()
            await asyncio.wait({self._reload})
        groups = list(self.groups.values())
        await asyncio.gather(*(group.shut_down() for group in groups))
        has_problem = any(group.has_problem for group in groups)
        await asyncio.gather(*(group.close(REPORT_MS) for group in groups))
        if self._heartbeats is not None:
            self._heartbeats.cancel()
        if self._launcher is not None:
            await self._launcher.close()
        return not has_problem and self.problem is None

    def _on_launcher_lost(self) -> None:
        self.problem = LauncherKilled()
        self.stop_requested.set()

    def _on_group_lost(self, name: str) -> None:
        """Another supervisor runs the group: its processes must not run here, too."""
        self.problem = GroupLost(group=name)
        group = self.groups.get(name)
        if group is not None and name not in self._lost:
            self._lost[name] = asyncio.get_running_loop().create_task(group.shut_down())
        if self._lost.keys() >= self.groups.keys():
            self.stop_requested.set()


def _longest_stop_s(settings: SupervisorSettings) -> float:
    return max((group.stop_timeout_ms for group in settings.groups), default=10_000) / 1_000


def default_state_directory(environ: Mapping[str, str]) -> Path:
    """Where locks and output are kept, unless somebody says otherwise."""
    base = environ.get("XDG_STATE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".local" / "state") / "liveness"
    except RuntimeError as error:
        raise StateDirectoryRefused(path=Path("~"), detail=str(error)) from None
