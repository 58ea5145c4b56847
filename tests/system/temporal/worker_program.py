"""A Temporal worker as users write them. It prints a line of JSON for everything that happens to it.

worker_program.py ADDRESS TASK_QUEUE OPTIONS: OPTIONS is JSON, see `Options`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client, TLSConfig
from temporalio.common import RetryPolicy
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.worker import UnsandboxedWorkflowRunner, Worker


@dataclass
class Options:
    interval: float = 1.0
    """Seconds between worker heartbeats."""
    slots: int = 10
    activities: bool = True
    workflows: bool = False
    graceful: float = 0.0
    tls: dict[str, str] = field(default_factory=dict)
    """Files `ca`, `cert` and `key`, and the `domain` in the server's certificate. Empty: no TLS."""


def tell(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, "pid": os.getpid(), **fields}), flush=True)


@activity.defn
async def work(spec: dict[str, Any]) -> str:
    """Run until the file `until` exists, in the attempts that `stuck` names. Then write the effect to a ledger."""
    info = activity.info()
    tell("started", activity=spec["name"], attempt=info.attempt)
    try:
        if info.attempt in spec.get("stuck", ()):
            while not Path(spec["until"]).exists():
                await asyncio.sleep(0.05)
                if spec.get("heartbeats"):
                    activity.heartbeat()
        if seconds := spec.get("seconds", 0):
            await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        tell("cancelled", activity=spec["name"], attempt=info.attempt)
        raise
    if "ledger" in spec:
        # As a database with fencing would: the highest attempt wins.
        with Path(spec["ledger"]).open("a") as ledger:
            ledger.write(f"{spec['name']} {info.attempt}\n")
    tell("finished", activity=spec["name"], attempt=info.attempt)
    return f"{spec['name']} by attempt {info.attempt}"


@workflow.defn
class Run:
    """Runs all activities at once and returns their results."""

    @workflow.run
    async def run(self, plan: dict[str, Any]) -> list[str]:
        heartbeat_timeout = plan.get("heartbeat_timeout")
        running = [
            workflow.start_activity(
                work,
                spec,
                task_queue=plan["task_queue"],
                start_to_close_timeout=timedelta(seconds=plan.get("start_to_close", 600)),
                heartbeat_timeout=timedelta(seconds=heartbeat_timeout) if heartbeat_timeout else None,
                retry_policy=RetryPolicy(maximum_attempts=plan.get("maximum_attempts", 0)),
                cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            )
            for spec in plan["activities"]
        ]
        return await asyncio.gather(*running)


def tls_config(tls: dict[str, str]) -> TLSConfig | bool:
    if not tls:
        return False
    ca, cert, key = (Path(tls[name]).read_bytes() for name in ("ca", "cert", "key"))
    return TLSConfig(server_root_ca_cert=ca, client_cert=cert, client_private_key=key, domain=tls["domain"])


async def main() -> None:
    address, task_queue, options = sys.argv[1], sys.argv[2], Options(**json.loads(sys.argv[3]))
    runtime = Runtime(
        telemetry=TelemetryConfig(), worker_heartbeat_interval=timedelta(seconds=options.interval)
    )
    client = await Client.connect(address, runtime=runtime, tls=tls_config(options.tls))
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Worker(
        client,
        task_queue=task_queue,
        workflows=[Run] if options.workflows else [],
        activities=[work] if options.activities else [],
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_concurrent_activities=options.slots if options.activities else None,
        graceful_shutdown_timeout=timedelta(seconds=options.graceful),
    ):
        tell("running")
        await stop.wait()
    tell("stopped")


if __name__ == "__main__":
    asyncio.run(main())
    sys.stdout.flush()
    # The interpreter sometimes crashes when the SDK's threads end with it.
    os._exit(0)
