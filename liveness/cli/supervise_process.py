"""Run a supervisor as a process: logs, signals, the live table, an embedded server, exit code."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from liveness.cli.descriptor_limit import raise_descriptor_limit
from liveness.cli.durations import humanize_ms
from liveness.cli.embedded_server import EmbeddedServer
from liveness.client_credentials import Credentials
from liveness.clock import SystemClock
from liveness.config.settings import SettingsError
from liveness.domain.component import ComponentStatus
from liveness.sdk.loop_client import LivenessClient
from liveness.supervisor.errors import SupervisorError
from liveness.supervisor.sd_notify import SdNotify
from liveness.supervisor.settings import SupervisorSettings
from liveness.supervisor.settings_file import load_supervisor_settings
from liveness.supervisor.supervisor import Supervisor, default_state_directory

EXIT_UNCLEAN = 1
TABLE_INTERVAL_S = 0.5
STYLES = {
    ComponentStatus.STARTING: "yellow",
    ComponentStatus.HEALTHY: "green",
    ComponentStatus.PAUSED: "cyan",
    ComponentStatus.STOPPING: "yellow",
    ComponentStatus.STOPPED: "dim",
    ComponentStatus.CRASHED: "red",
    ComponentStatus.FAILED: "bold red",
}

logger = logging.getLogger("liveness.supervisor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    settings: SupervisorSettings
    config: Path | None
    addresses: tuple[str, ...]
    credentials: Credentials
    namespace: str
    embedded: bool
    state_directory: Path | None
    wait_ms: int
    exit_when_done: bool
    table: bool
    log_level: str
    log_format: str
    environ: Mapping[str, str]


async def run_supervisor(options: Options) -> int:
    """Run until SIGTERM or SIGINT, and return the exit code. Raises SupervisorError."""
    console = Console(stderr=not options.table, highlight=False)
    _configure_logging(options, console)
    raise_descriptor_limit()
    clock = SystemClock()
    systemd = SdNotify(options.environ, clock)
    async with AsyncExitStack() as stack:
        if options.embedded:
            server = EmbeddedServer(options.addresses[0], clock)
            stack.push_async_callback(server.stop)
            await server.start()
        client = LivenessClient(options.addresses, options.credentials)
        stack.callback(client.close)
        supervisor = Supervisor(
            options.settings,
            client,
            ",".join(options.addresses),
            options.namespace,
            clock,
            options.state_directory or default_state_directory(options.environ),
            _for_children(options.environ),
        )
        signals = _Signals(supervisor, options, systemd)
        signals.install()
        tasks = [asyncio.create_task(systemd.feed_watchdog())]
        if not await _start(supervisor, options.wait_ms):
            return 0
        count = sum(len(group.components) for group in supervisor.groups.values())
        systemd.send(ready=1, status=f"supervising {count} processes")
        logger.info(
            "supervising %s processes of %s; the server is %s",
            count, ", ".join(supervisor.groups), ",".join(options.addresses),
        )  # fmt: skip
        if options.exit_when_done:
            tasks.append(asyncio.create_task(_stop_when_done(supervisor)))
        with _table(options, console, supervisor, clock) as live:
            if live is not None:
                tasks.append(asyncio.create_task(_refresh(live, supervisor, clock)))
            await supervisor.stop_requested.wait()
            systemd.send(stopping=1)
            logger.info("stopping")
            ended_well = await supervisor.stop()
            for task in tasks:
                task.cancel()
            if live is not None:
                live.update(_draw(supervisor, clock), refresh=True)
        if supervisor.problem is not None:
            raise supervisor.problem
        logger.info("stopped%s", "" if ended_well else "; not all processes ended well")
        return 0 if ended_well else EXIT_UNCLEAN


async def _start(supervisor: Supervisor, wait_ms: int) -> bool:
    """Returns False if it was told to stop while it still waited for the server, or for another supervisor."""
    starting = asyncio.create_task(supervisor.start(wait_ms))
    told = asyncio.create_task(supervisor.stop_requested.wait())
    await asyncio.wait({starting, told}, return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    if not starting.done():
        starting.cancel()
        with suppress(asyncio.CancelledError):
            await starting
        return False
    await starting
    return True


async def _stop_when_done(supervisor: Supervisor) -> None:
    await supervisor.wait_done()
    supervisor.stop_requested.set()


def _for_children(environ: Mapping[str, str]) -> dict[str, str]:
    """What children inherit. Their own NOTIFY_SOCKET is the supervisor's, not systemd's."""
    return {
        name: value
        for name, value in environ.items()
        if name not in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID")
    }


class _Signals:
    def __init__(self, supervisor: Supervisor, options: Options, systemd: SdNotify) -> None:
        self._systemd = systemd
        self._supervisor = supervisor
        self._options = options
        self._reloads: set[asyncio.Task[None]] = set()

    def install(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop)
        loop.add_signal_handler(signal.SIGHUP, self._on_reload)

    def _on_stop(self) -> None:
        if self._supervisor.stop_requested.is_set():
            logger.warning("told to stop again: killing all processes")
            self._supervisor.kill_all()
        self._supervisor.stop_requested.set()

    def _on_reload(self) -> None:
        config = self._options.config
        if config is None:
            if self._options.table:
                logger.info("the terminal is gone")
                self._supervisor.stop_requested.set()
            else:
                logger.info("there is no configuration file to read again")
            return
        reload = asyncio.get_running_loop().create_task(self._read_again(config))
        self._reloads.add(reload)
        reload.add_done_callback(self._reloads.discard)

    async def _read_again(self, path: Path) -> None:
        self._systemd.begin_reload()
        try:
            settings = load_supervisor_settings(path)
            await self._supervisor.reload(settings, self._options.wait_ms)
        except (SettingsError, SupervisorError) as error:
            logger.error("the configuration was not taken over: %s", error)
        else:
            logger.info("read %s again", path)
        finally:
            if not self._supervisor.stop_requested.is_set():
                count = sum(len(group.components) for group in self._supervisor.groups.values())
                self._systemd.send(ready=1, status=f"supervising {count} processes")


# -- logs


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


class _ConsoleHandler(logging.Handler):
    """Prints above the live table."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Exception):
            self._console.print(Text(self.format(record)), soft_wrap=True)


def _configure_logging(options: Options, console: Console) -> None:
    is_json = options.log_format == "json" or (options.log_format == "auto" and not sys.stderr.isatty())
    handler: logging.Handler
    if options.table:
        handler = _ConsoleHandler(console)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(
            _JsonFormatter()
            if is_json
            else logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")
        )
    level = logging.getLevelNamesMapping().get(options.log_level.upper(), logging.INFO)
    root = logging.getLogger("liveness")
    root.handlers, root.propagate = [handler], False
    root.setLevel(level)


# -- the table


@contextmanager
def _table(
    options: Options, console: Console, supervisor: Supervisor, clock: SystemClock
) -> Iterator[Live | None]:
    if not options.table:
        yield None
        return
    live = Live(_draw(supervisor, clock), console=console, auto_refresh=False, transient=False)
    live.start()
    try:
        yield live
    finally:
        with suppress(OSError):  # the terminal may have gone
            live.stop()


async def _refresh(live: Live, supervisor: Supervisor, clock: SystemClock) -> None:
    with suppress(OSError):
        while True:
            live.update(_draw(supervisor, clock), refresh=True)
            await clock.sleep(TABLE_INTERVAL_S * 1_000)


def _draw(supervisor: Supervisor, clock: SystemClock) -> Table:
    away = "  [red]the server does not answer; processes go on[/]" if supervisor.is_server_away else ""
    table = Table(
        box=None,
        pad_edge=False,
        caption=f"Ctrl-C stops all{away}",
        caption_justify="left",
        header_style="dim",
    )
    for title in ("component", "status", "pid", "up", "job", "restarts", "why"):
        table.add_column(title, no_wrap=True)
    now_ms = clock.wall_ms()
    for group in supervisor.groups.values():
        for component in group.components.values():
            machine = component.machine
            status = machine.status
            up = humanize_ms(now_ms - machine.process_start_ms) if machine.process_start_ms else ""
            table.add_row(
                component.id,
                Text(status.name.lower() if status else "", STYLES.get(status, "") if status else ""),
                str(machine.process_id or ""),
                up,
                Text(component.current_job[:30]),
                str(machine.history.count or ""),
                Text(component.reason[:60], "dim"),
            )
    return table
