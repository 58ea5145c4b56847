"""The command line accepts every command in the README and the guides."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from liveness.cli import main

ROOT = Path(__file__).resolve().parents[3]
COMMANDS = [
    line
    for page in (
        "README.md",
        "docs/operations.md",
        "docs/http.md",
        "docs/supervisor.md",
        "docs/sdk.md",
        "docs/tutorial.md",
    )
    for line in re.findall(
        r"^(?:\.venv/bin/)?liveness (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE
    )
]


def parse(command: click.Command, name: str, args: list[str], parent: click.Context | None) -> None:
    """Parse down to the last subcommand without running it."""
    with command.make_context(name, args, parent=parent) as context:
        if isinstance(command, click.Group):
            found, subcommand, rest = command.resolve_command(
                context, [*context._protected_args, *context.args]
            )
            assert found is not None
            assert subcommand is not None
            parse(subcommand, found, rest, context)


@pytest.mark.parametrize("line", COMMANDS)
def test_a_documented_command_parses(line: str) -> None:
    parse(main, "liveness", shlex.split(line, comments=True), None)


def test_the_documentation_contains_commands() -> None:
    assert len(COMMANDS) > 10
