"""The servers under test as child processes."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path


class Side:
    def __init__(self, name, process, port):
        self.name = name
        self.process = process
        self.address = f"127.0.0.1:{port}"

    def cpu_s(self):
        """Processor time used so far, all threads, kernel included; None where the system does not tell."""
        return processor_s(self.process.pid)


def processor_s(pid):
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return (int(fields[11]) + int(fields[12])) / 100


@contextmanager
def side(name, module, *args):
    command = [sys.executable, "-m", module, "127.0.0.1:0", *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.strip():
                sys.exit(f"the {name} server did not start; run it by hand to see why: {' '.join(command)}")
            yield Side(name, process, int(line))
        finally:
            process.terminate()
            process.wait(20)
