"""The servers under test as child processes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path


class Unavailable(Exception):
    """A side cannot be measured here; the text says why."""


class ServerProcess:
    def __init__(self, name, process, port):
        self.name = name
        self.process = process
        self.address = f"127.0.0.1:{port}"

    def cpu_s(self):
        """Return the processor time so far, of all threads and the kernel; None where the system does not report it."""
        return processor_s(self.process.pid)

    def resident_bytes(self):
        return resident_bytes(self.process.pid)

    def written_bytes(self):
        return written_bytes(self.process.pid)


def processor_s(pid):
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return (int(fields[11]) + int(fields[12])) / 100


def resident_bytes(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1_024
    raise Unavailable("the system does not tell how much memory a process has")


def written_bytes(pid):
    """Return the bytes written to disk so far; always 0 on a file system in memory."""
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("write_bytes:"):
            return int(line.split()[1])
    raise Unavailable("the system does not tell how much a process wrote")


@contextmanager
def server_process(name, module, *args):
    command = [sys.executable, "-m", module, "127.0.0.1:0", *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.strip():
                raise SystemExit(f"the {name} server ({module}) did not start")
            yield ServerProcess(name, process, int(line))
        finally:
            process.terminate()
            process.wait(60)


@contextmanager
def liveness(*settings, name="liveness"):
    """Run the product on its own SQLite file. `settings`: as name=value."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder, 'bench.db')}"
        with server_process(name, "bench.liveness_server", url, *settings) as made:
            yield made
