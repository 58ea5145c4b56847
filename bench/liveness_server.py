"""The product as `liveness serve` starts it, printing only its port.

h2load sends all heartbeats of a process as one worker, so the rate of one worker is limited to a number that it never reaches:
what the limit costs is measured, and nothing is refused.
"""

from __future__ import annotations

import asyncio
import sys
from threading import Thread
from typing import Any

import grpc

from liveness.cli.server_process import serve
from liveness.config.settings import Settings
from liveness.v1 import admin_pb2
from liveness.v1.admin_pb2_grpc import AdminServiceStub

HEARTBEAT_RATE = 1e9


def main(listen, db, *settings):
    """`settings`: name=value each, whole numbers."""
    wanted: dict[str, Any] = {
        name: int(value) for name, _, value in (given.partition("=") for given in settings)
    }
    made = Settings(db=db, listen=listen, **wanted, log_level="error", log_format="json", http="off")
    asyncio.run(serve(made, on_ready=lambda address, _: Thread(target=announce, args=(address,)).start()))


def announce(address):
    """Print the port once the rate is set. In a thread, because the server answers meanwhile."""
    config: Any = admin_pb2.NamespaceConfig(worker_heartbeat_rate=HEARTBEAT_RATE)
    with grpc.insecure_channel(address) as channel:
        AdminServiceStub(channel).UpdateConfig(
            admin_pb2.UpdateConfigRequest(set=config), timeout=30, wait_for_ready=True
        )
    print(address.rpartition(":")[2], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
