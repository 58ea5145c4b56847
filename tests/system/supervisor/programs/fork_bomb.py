"""A process that leaves all kinds of descendants behind, and prints their ids. They ignore SIGTERM.

"hidden": one of them also clears its environment and closes everything, as daemons do.
"""

import os
import signal
import sys
import time

LIFE_S = 60
"""So that a failed test leaves nothing behind for long."""


def stay(name: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.alarm(LIFE_S)
    os.write(1, f"{name} {os.getpid()}\n".encode())  # in one piece
    while True:
        signal.pause()


def double_fork(name: str) -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            stay(name)
        os._exit(0)
    os.wait()


def run_away() -> None:
    """A chain: each link leads a session of its own, starts the next one and ends."""
    if os.fork() == 0:
        end = time.monotonic() + LIFE_S
        while time.monotonic() < end:
            os.setsid()
            if os.fork():
                os._exit(0)
        os._exit(0)


for name in ("child", "sibling"):
    if os.fork() == 0:
        stay(name)
if os.fork() == 0:
    os.setsid()
    stay("session")
double_fork("daemon")
if "hidden" in sys.argv and os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(1, f"hidden {os.getpid()}\n".encode())
        signal.alarm(LIFE_S)
        os.closerange(0, 100)
        os.execve(sys.executable, [sys.executable, "-S", "-c", "import signal; signal.pause()"], {})
    os._exit(0)
if "runs-away" in sys.argv:
    run_away()
stay("leader")
