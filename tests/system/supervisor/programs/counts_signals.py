"""A process that is paused by SIGUSR1 and resumed by SIGUSR2, which would end it before it has handlers for them."""

import json
import os
import signal
import sys

health = int(os.environ["LIVENESS_HEALTH_FD"])


def count(number: int, frame: object) -> None:
    print("got", signal.Signals(number).name, flush=True)


def tell(status: str) -> None:
    frame = {"component_id": os.environ["LIVENESS_COMPONENT_ID"], "status": status}
    os.write(health, b"HEALTH|" + json.dumps(frame).encode() + b"\n")


tell("starting")
signal.sigtimedwait([signal.SIGTERM], float(sys.argv[1]))  # a start that takes long
for number in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, count)
tell("healthy")
while True:
    signal.pause()
