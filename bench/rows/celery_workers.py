"""How soon the task of a killed Celery worker runs again, with `liveness.contrib.celery` and without."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from celery import Celery

from bench.rounds import alternate, row
from tests.system.contrib.celery_stage import Broker, CeleryWorker
from tests.system.contrib.valkey import running_valkey
from tests.system.sdk.server_process import running_server, until

KILLED = "celery, killed worker"
NAMES = {KILLED: "kill -9 of a Celery worker until another one runs its task, with liveness against without"}
WITH, WITHOUT = "with liveness", "Celery alone"
VISIBILITY_S = 20
GRACE_S = 1
REDELIVERY_S_MAX = 180
"""A Celery worker looks for messages beyond their visibility timeout 10 seconds after its start and then every 100 seconds."""


def measure(work):
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder)) as server:

        def side(is_on):
            def once():
                return _kill_once(Path(folder), server.address, is_on=is_on)

            return once

        found = alternate(KILLED, {WITHOUT: side(False), WITH: side(True)}, work.few_rounds)
    notes = [
        f"the broker's visibility timeout is {VISIBILITY_S} s here, so that the comparison ends; by default it is an hour",
        f"the grace after a broken connection is {GRACE_S} s (5 s by default)",
    ]
    yield row(KILLED, "s", found, WITH, WITHOUT, notes=notes)


def _kill_once(folder, address, *, is_on):
    variables = {
        "LIVENESS_ADDRESS": address,
        "LIVENESS_NAMESPACE": f"celery-{time.monotonic_ns()}",
        "VISIBILITY_SECONDS": str(VISIBILITY_S),
        "WITH_LIVENESS": "on" if is_on else "off",
    }
    with running_valkey(folder) as (url, client), ExitStack() as stack:
        broker = Broker(url, client)

        def start(name):
            worker = CeleryWorker(name, broker, folder / f"{name}.log", **variables)
            stack.callback(worker.end)
            return worker

        first = start("first")
        broker.send("a")
        until(lambda: broker.begun() == ["a by first"])
        start("second")
        control = Celery(broker=url).control
        until(lambda: control.ping(destination=["second@host"], timeout=1))
        killed = time.perf_counter()
        first.kill()
        until(lambda: "a by second" in broker.begun(), REDELIVERY_S_MAX)
        took = time.perf_counter() - killed
        broker.finish("a", "a")
        until(lambda: broker.results() == 1)
        return took
