"""python -m bench.flames: where the server's time goes, under batches and while ten thousand leases end.

py-spy samples the running process a few hundred times a second from outside, so the server is unchanged. Writes
docs/images/bench-flame-*.svg.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench import plot
from bench.results import ROOT
from bench.rounds import print_progress
from bench.rows import mass_expiry
from bench.rows.against_noop import BATCHES, Workload
from bench.servers import Unavailable, liveness

IMAGES = ROOT / "docs" / "images"
PER_SECOND = 250
LEAST = 0.002
"""Stacks with a smaller share are left out."""
DEPTH_MAX = 40
ENTRANCES = ("._run_once", "Thread.run")
"""Frames up to here are the same for a whole thread."""


def program() -> str:
    local_program = Path(sys.executable).with_name("py-spy")
    found = str(local_program) if local_program.exists() else shutil.which("py-spy")
    if not found:
        raise Unavailable("py-spy is not installed: make .venv/.ready-bench")
    return found


@contextmanager
def sampled(pid):
    """Yield a dictionary that holds the samples by call stack afterwards."""
    stacks: Counter[tuple[str, ...]] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "raw")
        command = [program(), "record", "--format", "raw", "--rate", str(PER_SECOND), "--threads"]
        with subprocess.Popen(
            [*command, "--full-filenames", "--output", str(file), "--pid", str(pid)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield stacks
            finally:
                process.send_signal(signal.SIGINT)
                _, error_output = process.communicate(timeout=60)
        if not file.exists():
            raise Unavailable(
                f"py-spy does not work here: {(error_output.splitlines() or ['it said nothing'])[-1]}"
            )
        for line in file.read_text(encoding="utf-8").splitlines():
            frames, _, count = line.rpartition(" ")
            stacks[tuple(format_frame(frame) for frame in frames.split(";"))[:DEPTH_MAX]] += int(count)


FRAME = re.compile(r"(?P<name>.+) \((?P<file>[^()]*?)(?::\d+)?\)")


def format_frame(frame: str) -> str:
    """Return `module_name:function`, without a path of this machine."""
    if frame.startswith("thread"):
        # With its number, the name would differ in each run.
        name = re.search(r'"([^"]*)"|: (\S+)$', frame)
        return f"thread {name[1] or name[2]}" if name else "thread"
    found = FRAME.fullmatch(frame)
    if found is None:
        return frame.rpartition("/")[2]
    return f"{module_name(found['file'])}:{found['name']}"


def module_name(file: str) -> str:
    for mark in ("/site-packages/", f"{ROOT}/"):
        if mark in file:
            file = file.rpartition(mark)[2]
            break
    else:
        library = re.search(r"/python3\.\d+/(.*)", file)
        file = library[1] if library else file.rpartition("/")[2]
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def prune(stacks: Mapping[tuple[str, ...], int]) -> dict[tuple[str, ...], int]:
    """Remove the interpreter's own first frames, and shorten stacks that are too thin to see."""
    total = sum(stacks.values())
    kept: Counter[tuple[str, ...]] = Counter()
    for stack, count in stacks.items():
        start = next((at for at, frame in enumerate(stack) if frame.endswith(ENTRANCES)), 0)
        kept[stack[:1] + stack[start + 1 :]] += count
    for depth in range(max(map(len, kept)), 1, -1):
        for stack in [stack for stack in kept if len(stack) == depth and kept[stack] < LEAST * total]:
            kept[stack[:-1]] += kept.pop(stack)
    return dict(kept)


def under_batches(seconds: float):
    with liveness() as ours:
        workload = Workload(BATCHES, 50)
        rate = workload.send(ours)
        workload.calls = max(20, int(rate * seconds / workload.beats * workload.calls))
        with sampled(ours.process.pid) as stacks:
            workload.send(ours)
    return stacks


def under_mass_expiry(count: int):
    with mass_expiry.ours() as (server, db):
        due, _ = mass_expiry.register_workers(server.address, count)
        time.sleep(max(0.0, due - time.time()))
        with sampled(server.process.pid) as stacks:
            mass_expiry.wait_until_committed(db, count * mass_expiry.HELD)
        return stacks


def draw(name: str, title: str, stacks: Mapping[tuple[str, ...], int]) -> Path:
    subtitle = (
        f"{sum(stacks.values()):,} samples at {PER_SECOND} a second, waiting threads left out; callers below"
    )
    path = IMAGES / f"bench-flame-{name}.svg"
    path.write_text(plot.flames(title, subtitle, prune(stacks)), encoding="utf-8")
    return path


def draw_all(scale: float) -> int:
    """Draw all flame graphs; return 1 and print the reason if one cannot be made."""
    kinds: dict[str, tuple[str, Callable[[], Mapping[tuple[str, ...], int]]]] = {
        "batches": ("The server under batches of 100 heartbeats", lambda: under_batches(8 * scale)),
        "expiry": (
            "The server while leases with ten activities each lapse at once",
            lambda: under_mass_expiry(max(200, int(10_000 * scale))),
        ),
    }
    for name, (title, measure) in kinds.items():
        print_progress(title)
        try:
            path = draw(name, title, measure())
        except Unavailable as error:
            print_progress(f"no flame graph: {error}")
            return 1
        print_progress(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1_024} KiB")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.flames", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="of everything, relative (default 1)")
    return draw_all(parser.parse_args().scale)


if __name__ == "__main__":
    sys.exit(main())
