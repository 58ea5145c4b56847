"""The `liveness` command. It imports a subcommand only when that is called, so that help appears at once."""

from __future__ import annotations

import os
from difflib import get_close_matches
from importlib import import_module
from typing import NamedTuple

import click

from liveness.cli.shared_options import SharedOptionsGroup
from liveness.version import VERSION

# gRPC reads this when it is imported. Commands report in one sentence what its own log lines say, such as a port in use.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


class CommandEntry(NamedTuple):
    module: str
    help: str
    """Repeated here, so that the list of commands can be shown without importing them."""


COMMANDS = {
    "serve": CommandEntry("serve", "Start a server."),
    "frontend": CommandEntry("frontend", "Start a process that only forwards calls to nodes."),
    "supervise": CommandEntry(
        "supervise", "Run a command in one or more processes, watch them, and start again what crashes."
    ),
    "pgai": CommandEntry("pgai", "Install pgai's worker tracking in a PostgreSQL database."),
    "bridge": CommandEntry("bridge", "Run a proxy between another engine and its workers."),
    "demo": CommandEntry("demo", "Watch workers die and their work move to others."),
    "top": CommandEntry("top", "Show the fleet in a live view: workers, rates and alerts."),
    "watch": CommandEntry("watch", "Show events as they happen."),
    "namespaces": CommandEntry("namespaces", "List the namespaces that have workers or work."),
    "workers": CommandEntry("workers", "List, pause, drain, expire and forget workers."),
    "components": CommandEntry("components", "List, restart, stop, pause and scale supervised processes."),
    "metrics": CommandEntry("metrics", "Report and query numbers that components report about themselves."),
    "registry": CommandEntry("registry", "List registered components: worker pools, servers, brokers."),
    "progress": CommandEntry(
        "progress", "Show how far units of work are, report about them, and forget units."
    ),
    "activities": CommandEntry("activities", "List, schedule, cancel and retry activities."),
    "queues": CommandEntry(
        "queues", "Show what waits in task queues, who polls them, and how fast they move."
    ),
    "schedules": CommandEntry(
        "schedules", "Schedule activities again and again, by a cron expression or at an interval."
    ),
    "limits": CommandEntry("limits", "Limit how many activities of a workflow run at once."),
    "tasks": CommandEntry("tasks", "List, retry and discard queued tasks."),
    "incidents": CommandEntry("incidents", "Show workers that died together, and what they have in common."),
    "tune": CommandEntry("tune", "Replay the history of NAMESPACE with other settings, and recommend one."),
    "nodes": CommandEntry("nodes", "List the nodes of the cluster."),
    "cluster": CommandEntry("cluster", "Create the certificates that nodes and frontends show each other."),
    "relay": CommandEntry("relay", "Show the state of the message relay, and replay messages."),
    "shards": CommandEntry("shards", "List the shards with their state."),
    "config": CommandEntry("config", "Show and change the settings of namespaces."),
    "auth": CommandEntry("auth", "Create, list and revoke tokens; show what a caller may do."),
    "audit": CommandEntry("audit", "Show what operators and admins changed, and denied access."),
    "backup": CommandEntry("backup", "Copy a SQLite node's database to TARGET; the server may run."),
    "restore": CommandEntry("restore", "Replace a SQLite node's database with BACKUP."),
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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # Click suggests similar names too, but only from commands that are already imported.
        similar = [] if args[0] in COMMANDS else get_close_matches(args[0], COMMANDS, n=1)
        if similar and not ctx.resilient_parsing:
            ctx.fail(f"No such command '{args[0]}'. Did you mean '{similar[0]}'?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(VERSION, message="%(prog)s %(version)s", prog_name="liveness")
def main() -> None:
    """Know within seconds that a worker has died, and get its work moving again.

    \b
    Examples:
      liveness serve                        a server on 127.0.0.1:7400, kept in liveness.db
      liveness top                          a live view of the fleet
      liveness workers list --state active  the workers that are alive
      liveness doctor                       check this installation

    Client commands find the server through --address or LIVENESS_ADDRESS. The options --address, --namespace, --json,
    --token-file and those of --tls are accepted before and after a client command; the last one wins. Other commands refuse those that they do not use.

    \b
    Tab completion, in ~/.bashrc (or ~/.zshrc with zsh_source, or fish with fish_source):
      eval "$(_LIVENESS_COMPLETE=bash_source liveness)"
    """
