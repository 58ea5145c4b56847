"""A node whose wall clock is wrong: `python -m tests.system.cluster.skewed_node serve OPTIONS`, like `liveness serve`.

SKEW_MS in the environment is the error. The node does not differ otherwise.
"""

from __future__ import annotations

import asyncio
import os
import sys

from liveness.cli.serve import serve as serve_command
from liveness.cli.serve import settings_from_flags
from liveness.cli.server_process import serve
from liveness.clock import SystemClock


class SkewedClock(SystemClock):
    def __init__(self, skew_ms: int) -> None:
        self._skew_ms = skew_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self._skew_ms


def main(arguments: list[str]) -> int:
    assert arguments[:1] == ["serve"], arguments
    with serve_command.make_context("serve", arguments[1:]) as context:
        flags = dict(context.params)
    settings = settings_from_flags(flags, flags.pop("config"))
    return asyncio.run(serve(settings, clock=SkewedClock(int(os.environ["SKEW_MS"]))))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
