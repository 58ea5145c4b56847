"""Repeat calls of a fuzzing run: python -m tests.fuzz --seed 20 --first 1234 --count 1

The server is a new one on an empty database; give a lower --first and a higher --count to repeat what came before, too.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile

from tests.fuzz.fuzzer import Fuzzer, Target
from tests.fuzz.grpc_inputs import GrpcInputs


async def repeat(seed: int, first: int, count: int) -> None:
    inputs = GrpcInputs(seed)
    if count <= 10:
        for number in range(first, first + count):
            print(inputs.draw(number))
    with tempfile.TemporaryDirectory(prefix="liveness-fuzz-") as folder:
        target = await Target(f"sqlite:///{folder}/liveness.db").start()
        fuzzer = Fuzzer(target, inputs)
        try:
            await fuzzer.run(first, count)
            await target.check_serves()
        finally:
            await target.stop()
    print({code.name: times for code, times in fuzzer.codes.items()})


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--seed", type=int, required=True)
parser.add_argument("--first", type=int, default=0)
parser.add_argument("--count", type=int, default=1)
chosen = parser.parse_args()
asyncio.run(repeat(chosen.seed, chosen.first, chosen.count))
