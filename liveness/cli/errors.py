"""How a command ends badly: one sentence on stderr and an exit code, never a traceback."""

from __future__ import annotations

import unicodedata
from typing import IO, Any

import click

# Controls, invisible formatting (which can reverse what follows), lone surrogates, private use, line separators.
_NOT_SHOWN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def escape_control(text: str) -> str:
    """`text` with everything escaped that a terminal would obey instead of show."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape").decode()
        if unicodedata.category(character) in _NOT_SHOWN
        else character
        for character in text
    )


class CommandError(click.ClickException):
    exit_code = 1

    def __init__(self, message: str, reason: str = "") -> None:
        """`reason`: the server's, for programs; empty if it is not the server that refused."""
        super().__init__(escape_control(message))
        self.reason = reason

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"error: {self.message}", file=file, err=file is None)


class UsageError(CommandError):
    """The command, or what it was set up with, must be changed."""

    exit_code = 2
