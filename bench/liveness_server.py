"""The product as `liveness serve` starts it, printing only its port.

h2load sends all heartbeats of a process as one worker, so the rate of one worker is limited to a number that it never reaches:
what the limit costs is measured, and nothing is refused.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import grpc

from liveness.cli.server_process import serve
from liveness.config.settings import Settings
from liveness.v1 import admin_pb2
from liveness.v1.admin_pb2_grpc import AdminServiceStub

HEARTBEAT_RATE = 1e9


def main(listen, db, *settings):
    """`settings`: name=value each, whole numbers; or listener=KIND, cluster_listen=HOST:PORT; or token_file=PATH, the admin token of a server that asks
    who calls."""
    given = dict(setting.split("=", 1) for setting in settings)
    token_file = given.pop("token_file", "")
    wanted: dict[str, Any] = {"listener": given.pop("listener", "python")}
    if "cluster_listen" in given:
        wanted["cluster_listen"] = given.pop("cluster_listen")
    wanted |= {name: int(value) for name, value in given.items()}
    metadata: tuple[tuple[str, str], ...] = ()
    if token_file:
        wanted |= {"auth": "on"}
        metadata = (("authorization", f"Bearer {Path(token_file).read_text().strip()}"),)
    made = Settings(db=db, listen=listen, **wanted, log_level="error", log_format="json", http="off")
    asyncio.run(
        serve(made, on_ready=lambda address, _: Thread(target=announce, args=(address, metadata)).start())
    )


def announce(address, metadata):
    """Print the port once the rate is set. In a thread, because the server answers meanwhile."""
    config: Any = admin_pb2.NamespaceConfig(worker_heartbeat_rate=HEARTBEAT_RATE)
    with grpc.insecure_channel(address) as channel:
        AdminServiceStub(channel).UpdateConfig(
            admin_pb2.UpdateConfigRequest(set=config), metadata=metadata, timeout=30, wait_for_ready=True
        )
    print(address.rpartition(":")[2], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
