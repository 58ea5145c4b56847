"""A traced program: it sets OpenTelemetry up as our documentation says, runs a worker, and schedules an activity.

Arguments: the collector, the server, the namespace.
"""

from __future__ import annotations

import asyncio
import sys

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from liveness import Client, Worker


async def main(address: str, namespace: str) -> None:
    async with (
        Worker(address, namespace=namespace, task_queue="q", instance_key="traced") as worker,
        Client(address, namespace=namespace) as client,
    ):

        @worker.activity("greet")
        async def greet(task: object) -> str:
            return "hello"

        running = asyncio.create_task(worker.run())
        with trace.get_tracer("program").start_as_current_span("order"):
            job = await client.schedule("greet", id="one", input=None, task_queue="q")
        await client.wait(job.ref)
        worker.stop()
        await running


if __name__ == "__main__":
    provider = TracerProvider(resource=Resource.create({"service.name": "program"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=sys.argv[1], insecure=True)))
    trace.set_tracer_provider(provider)
    asyncio.run(main(*sys.argv[2:]))
    provider.shutdown()
