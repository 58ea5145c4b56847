"""`liveness serve --door noetl` as a process."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.integration.http.http_client import JSON, Client
from tests.system.cli.server_processes import child_process, liveness_command
from tests.system.http.test_process import port_in


async def test_the_server_is_registered_beside_its_pools_and_counts_them(tmp_path: Path) -> None:
    flags = ("--listen", "127.0.0.1:0", "--shards", "2", "--http", "127.0.0.1:0", "--door", "noetl:etl")
    variables = {
        "NOETL_SERVER_NAME": "server-x",
        "NOETL_WORKER_CAPACITY": "4",
        "NOETL_SERVER_METRICS_INTERVAL": "1",
        "LIVENESS_REGISTER_SELF": "on",
    }
    with child_process(liveness_command("serve", *flags), tmp_path, variables) as process:
        assert process.stdout is not None
        client = Client(port_in(process.stdout))
        body = json.dumps({"name": "worker-cpu"}).encode()
        answer = await client.ask("POST", "/api/worker/pool/heartbeat", JSON, body)
        assert answer.json()["status"] == "recreated"
        async with asyncio.timeout(30):
            while len(found := (await client.get("/v1/namespaces/etl/registry"))["entries"]) < 2:
                await asyncio.sleep(0.05)
            query = "/api/metrics/query?component_name=server-x&metric_name=noetl_server_active_workers"
            while 1 not in [row["metric_value"] for row in (await client.get(query))["metrics"]]:
                await asyncio.sleep(0.05)
    server, pool = found
    assert (server["worker_instance_key"], server["status"]) == ("server_api:server-x", "ready")
    assert server["uri"] == f"http://127.0.0.1:{client.port}/"
    assert (pool["worker_instance_key"], pool["capacity"]) == ("worker_pool:worker-cpu", 4)
