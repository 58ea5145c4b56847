"""Commands that need more than `pip install liveness` brings say so in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from liveness.cli.errors import UsageError
from liveness.config.extras import server_parts_installed, server_parts_needed


def needs_server_parts(command: Callable[..., None]) -> Callable[..., None]:
    """Refuse to run `command` where the server parts are not installed. Its help still works."""

    @wraps(command)
    def run(*args: Any, **options: Any) -> None:
        if not server_parts_installed():
            raise UsageError(server_parts_needed(f"liveness {click.get_current_context().info_name}"))
        command(*args, **options)

    return run
