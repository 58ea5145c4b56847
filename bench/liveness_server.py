"""The product as it is started by `liveness serve`, printing only its port."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from liveness.serving import serve
from liveness.settings import Settings


def main(listen, db, *shards):
    wanted: dict[str, Any] = {"shards": int(*shards)} if shards else {}
    settings = Settings(db=db, listen=listen, **wanted, log_level="error", log_format="json", http="off")
    asyncio.run(serve(settings, on_ready=lambda address, _: print(address.rpartition(":")[2], flush=True)))


if __name__ == "__main__":
    main(*sys.argv[1:])
