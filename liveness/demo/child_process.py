"""`python -m liveness.demo.child_process MODULE ARGS…` runs a module in a process that does not outlive the demo.

The process ends when the demo ends, for whatever reason: it reads its standard input, whose other end the demo holds. A
process that is stopped with SIGSTOP cannot read, so on Linux the kernel is told to kill it when its parent dies.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
from threading import Thread

PR_SET_PDEATHSIG = 1


def main() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    Thread(target=_exit_with_parent, daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _exit_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1_024):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
