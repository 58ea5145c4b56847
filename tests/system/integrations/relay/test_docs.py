"""The consumer in the documentation works as described."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from tests.system.integrations.relay.nats_servers import one_server
from tests.system.integrations.relay.relay_server import lose, relay_server, until, until_done
from tests.system.server.conftest import MakeServer

DOCS = Path(__file__).parents[4] / "docs" / "relay.md"


async def test_the_documented_consumer_takes_each_delivery_once(
    make_server: MakeServer, tmp_path: Path
) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "consumer.py").write_text(program)
    async with one_server(tmp_path) as broker:
        server = relay_server(make_server, tmp_path, [broker])
        await server.start()
        names = await lose(server, "w", 20)
        await lose(server, "v", 5, "print")
        await until_done(server, 25)
        consumer = await asyncio.create_subprocess_exec(
            sys.executable, "consumer.py", cwd=tmp_path, env={**os.environ, "NATS_URL": broker.url}
        )
        try:

            async def taken() -> bool:
                with closing(sqlite3.connect(tmp_path / "inbox.db")) as db:
                    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'inbox'").fetchone():
                        return False
                    rows = db.execute("SELECT json_extract(activity, '$.activity_id') FROM inbox").fetchall()
                return sorted(name for (name,) in rows) == sorted(names)

            await until(taken, "the consumer has what it asked for, and nothing else")
        finally:
            consumer.kill()
            await consumer.wait()
