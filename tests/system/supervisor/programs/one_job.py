"""A process with `liveness.sdk.health` and one job, which ends when its file exists: in order, or by an exception. Afterwards it waits
for its end. "signalled": it does not handle signals."""

import sys
import time
from pathlib import Path

from liveness.sdk import health

way, gate = sys.argv[1], Path(sys.argv[2])
health.start()
if way != "signalled":
    health.install_signal_handler()
health.wait_while_paused()
with health.job(f"{way}_job"):
    while not gate.exists():
        time.sleep(0.01)
    if way == "raises":
        raise ValueError("this job cannot be done")
    gate.with_name("finished").touch()
while health.wait_while_paused():
    time.sleep(0.01)
