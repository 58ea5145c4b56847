"""A process with `liveness.sdk.health` that takes one job after the other, as soon as it may, and names each after its process."""

import os
import time

from liveness.sdk import health

health.start()
number = 0
while health.wait_while_paused():
    number += 1
    print("takes", number, flush=True)
    with health.job(f"{os.getpid()}-{number}"):
        time.sleep(0.01)
