"""`liveness supervise`: run commands as watched, restarted and pausable workers."""

from __future__ import annotations

import asyncio
import os
import sys
from math import isnan
from pathlib import Path
from typing import Any

import click

from liveness.cli.client import credentials_of
from liveness.cli.errors import CommandError, UsageError
from liveness.cli.init_process import fork_from_init
from liveness.cli.serve import INTERRUPTED
from liveness.cli.shared_options import CONNECTION_NAMES, connection_options, namespace_option
from liveness.config.settings import SettingsError, load_client_settings


@click.command(context_settings={"ignore_unknown_options": False})
@click.option("--name", metavar="GROUP", help="The group; its components are worker:GROUP:0, 1, …")
@click.option(
    "--processes", metavar="N", type=click.IntRange(0, 10_000), help="How many to run.  [default: 1]"
)
@click.option("--config", metavar="FILE.toml", help="Several groups, with all their settings.")
@click.option(
    "--embedded",
    is_flag=True,
    help="Start a server, too, on its default database: the whole product in one command.",
)
@click.option("--state-dir", metavar="DIR", help="For locks and output.  [default: ~/.local/state/liveness]")
@click.option(
    "--wait", "wait_s", metavar="SECONDS", type=click.FloatRange(0, 3_600), default=30.0, show_default=True,
    help="How long to wait for the server, or for another supervisor of the group to end.",
)  # fmt: skip
@click.option("--exit-when-done", is_flag=True, help="End when every process has ended for good.")
@click.option("--table/--no-table", default=None, help="Show a live table.  [default: in a terminal]")
@click.option(
    "--log-level", type=click.Choice(("debug", "info", "warning", "error")), default="info", show_default=True, help="How much to log.",
)  # fmt: skip
@click.option(
    "--log-format", type=click.Choice(("auto", "console", "json")), default="auto", show_default=True,
    help="auto: console in a terminal, else json.",
)  # fmt: skip
@connection_options
@namespace_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def supervise(
    *,
    name: str | None,
    processes: int | None,
    config: str | None,
    embedded: bool,
    state_dir: str | None,
    wait_s: float,
    exit_when_done: bool,
    table: bool | None,
    log_level: str,
    log_format: str,
    command: tuple[str, ...],
    **flags: Any,
) -> None:
    """Run a command in one or more processes, watch them, and start again what crashes.

    Each process is a worker: what it works on moves on at once when it dies. A process needs to know nothing of it; if it
    tells its health (`liveness.sdk.health`, or systemd's protocol), one that hangs is replaced, too. `liveness components`
    shows and controls the processes. SIGHUP reads the configuration again. Exits with 0 if every process ended well.

    \b
    Examples:
      liveness supervise --name discovery --processes 4 -- python worker.py
      liveness supervise --embedded --name discovery -- python worker.py
      liveness supervise --config workers.toml
    """
    from liveness.cli.supervise_process import Options, run_supervisor
    from liveness.sdk.errors import InvalidCredentials
    from liveness.supervisor.errors import SupervisorError
    from liveness.supervisor.settings_file import load_supervisor_settings, settings_from_flags

    if config and (name or command or processes is not None):
        raise UsageError("give --config, or --name with a command, not both")
    if not config and not (name and command):
        raise UsageError(
            "give --name and a command after --, or --config FILE.toml; see `liveness supervise --help`"
        )
    if isnan(wait_s):
        raise UsageError("flag --wait is nan, but must be a number of seconds from 0 to 3600")
    try:
        client = load_client_settings(
            {each: flags[each] for each in (*CONNECTION_NAMES, "namespace")}, os.environ
        )
        settings = (
            load_supervisor_settings(Path(config))
            if config
            else settings_from_flags(name or "", command, 1 if processes is None else processes)
        )
    except SettingsError as error:
        raise UsageError(str(error)) from error
    options = Options(
        settings=settings,
        config=Path(config) if config else None,
        addresses=client.addresses,
        credentials=credentials_of(client),
        namespace=client.namespace,
        embedded=embedded,
        state_directory=Path(state_dir) if state_dir else None,
        wait_ms=int(wait_s * 1_000),
        exit_when_done=exit_when_done,
        table=sys.stdout.isatty() if table is None else table,
        log_level=log_level,
        log_format=log_format,
        environ=os.environ,
    )
    if os.getpid() == 1:
        fork_from_init()
    try:
        code = asyncio.run(run_supervisor(options))
    except KeyboardInterrupt:
        code = INTERRUPTED
    except (SupervisorError, InvalidCredentials) as error:
        raise CommandError(str(error)) from error
    _leave_closed_outputs()
    sys.exit(code)


def _leave_closed_outputs() -> None:
    """If the terminal is gone, Python would fail to flush what was to be shown, and exit with 120 instead of the code."""
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except OSError:
            setattr(sys, name, None)
