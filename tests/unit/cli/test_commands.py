"""The commands as a whole."""

from __future__ import annotations

import click

from liveness.cli import COMMANDS, main


def test_the_list_shows_each_commands_own_summary() -> None:
    context = click.Context(main)
    for name, entry in COMMANDS.items():
        command = main.get_command(context, name)
        assert command is not None
        assert command.get_short_help_str(limit=200) == entry.help
