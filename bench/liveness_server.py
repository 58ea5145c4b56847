"""The product as `liveness serve` starts it, printing only its port."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from liveness.cli.server_process import serve
from liveness.config.settings import Settings


def main(listen, db, *settings):
    """`settings`: name=value each, whole numbers."""
    wanted: dict[str, Any] = {
        name: int(value) for name, _, value in (given.partition("=") for given in settings)
    }
    made = Settings(db=db, listen=listen, **wanted, log_level="error", log_format="json", http="off")
    asyncio.run(serve(made, on_ready=lambda address, _: print(address.rpartition(":")[2], flush=True)))


if __name__ == "__main__":
    main(*sys.argv[1:])
