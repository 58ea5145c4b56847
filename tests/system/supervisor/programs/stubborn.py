"""A process that ignores SIGTERM, and leaves a grandchild behind."""

import os
import signal
import subprocess
import sys

signal.signal(signal.SIGTERM, signal.SIG_IGN)
grandchild = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
print("grandchild", grandchild.pid, "of", os.getpid(), flush=True)
while True:
    signal.pause()
