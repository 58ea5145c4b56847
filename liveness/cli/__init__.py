"""The `liveness` command. Subcommands are loaded when they are called, so that help appears at once."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

import click

from liveness.cli.shared_options import SharedOptionsGroup


class CommandEntry(NamedTuple):
    module: str
    help: str
    """Repeated here, so that the list of commands can be shown without loading them."""


COMMANDS = {
    "serve": CommandEntry("serve", "Start a server."),
    "frontend": CommandEntry("frontend", "Start a process that only carries calls to nodes."),
    "demo": CommandEntry("demo", "See workers die and their work move on."),
    "top": CommandEntry("top", "See the fleet at a glance: who is alive, what goes on, what needs a look."),
    "watch": CommandEntry("watch", "Tell what happens, as it happens."),
    "workers": CommandEntry("workers", "See workers, pause, drain and force them out."),
    "activities": CommandEntry("activities", "See, schedule, cancel and retry activities."),
    "tasks": CommandEntry("tasks", "See, retry and discard queued tasks."),
    "nodes": CommandEntry("nodes", "See which servers there are."),
    "relay": CommandEntry("relay", "See what is relayed to a message broker, and relay it again."),
    "shards": CommandEntry("shards", "See how the shards are doing."),
    "config": CommandEntry("config", "See and change what namespaces allow."),
    "backup": CommandEntry(
        "backup", "Copy a SQLite node's database to TARGET, while the server runs or not."
    ),
    "restore": CommandEntry("restore", "Put BACKUP in the place of a SQLite node's database."),
    "doctor": CommandEntry("doctor", "Check this installation, the database and the disk under it."),
}


class LazyGroup(SharedOptionsGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command = getattr(import_module(f"liveness.cli.{entry.module}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(package_name="liveness", message="%(prog)s %(version)s", prog_name="liveness")
def main() -> None:
    """Know within seconds that a worker has died, and get its work moving again.

    \b
    Examples:
      liveness serve                        a server on 127.0.0.1:7400, kept in liveness.db
      liveness top                          the fleet at a glance
      liveness workers list --state active  who is alive
      liveness doctor                       is everything in order here?

    Client commands find the server through --address or LIVENESS_ADDRESS. The options --address, --namespace and --json
    are accepted before and after a client command; the last one wins. Other commands refuse those that they do not use.
    """
