"""Repeat calls of a fuzzing run: python -m tests.fuzz --seed 20 --first 1234 --count 1

The server is a new one on an empty database; give a lower --first and a higher --count to repeat what came before, too.
--target names other servers, such as "authentication", "frontend" and "two nodes".
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import tempfile
from contextlib import ExitStack

import structlog

from tests.databases import PostgresServer
from tests.fuzz.fuzzer import TARGETS, Fuzzer, Shape, Target


async def repeat(shape: Shape, seed: int, first: int, count: int) -> None:
    with ExitStack() as stack:
        if shape.nodes > 1:
            postgres = stack.enter_context(PostgresServer())
            url = postgres.url(postgres.create_database())
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="liveness-fuzz-"))
            url = f"sqlite:///{folder}/liveness.db"
        target = await Target(url, shape).start()
        inputs = target.inputs(seed)
        if count <= 10:
            for number in range(first, first + count):
                print(inputs.draw(number))
        fuzzer = Fuzzer(target, inputs)
        try:
            await fuzzer.run(first, count)
            await target.check_serves()
        finally:
            await target.stop()
    print({code.name: times for code, times in fuzzer.codes.items()})


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--target", choices=TARGETS, default="node")
parser.add_argument("--seed", type=int, required=True)
parser.add_argument("--first", type=int, default=0)
parser.add_argument("--count", type=int, default=1)
chosen = parser.parse_args()
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
asyncio.run(repeat(TARGETS[chosen.target], chosen.seed, chosen.first, chosen.count))
