"""Errors of commands: each prints one sentence on stderr and sets an exit code, without a traceback."""

from __future__ import annotations

import sys
import unicodedata
from typing import IO, Any, NoReturn

import click

# Controls, invisible formatting (which can reverse what follows), lone surrogates, private use, line separators.
_NOT_SHOWN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def escape_control(text: str) -> str:
    """Escape the characters that a terminal would interpret instead of show."""
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
        """`reason`: the server's machine-readable reason; empty if the error does not come from the server."""
        super().__init__(escape_control(message))
        self.reason = reason

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"error: {self.message}", file=file, err=file is None)


class UsageError(CommandError):
    """The arguments or settings of the command are wrong."""

    exit_code = 2


def fail_server(error: CommandError, log_format: str, cause: BaseException) -> NoReturn:
    """End a server process with this error: as a line of its log if a program reads that, else as a sentence."""
    if log_format != "json":
        raise error from cause
    import structlog  # a part of the server, which not every installation has

    structlog.get_logger("liveness.cli").critical("the server cannot run", why=error.message)
    sys.exit(error.exit_code)
