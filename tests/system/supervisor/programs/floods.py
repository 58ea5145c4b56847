"""A process that fills its health pipe and its output as fast as it can: good lines, bad lines, and lines of 10 MB."""

import json
import os
import sys
import threading

health = int(os.environ["LIVENESS_HEALTH_FD"])
frame = {"component_id": os.environ["LIVENESS_COMPONENT_ID"], "status": "healthy", "telemetry": "x" * 100}
good = b"HEALTH|" + json.dumps(frame).encode() + b"\n"


def write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def shout() -> None:
    while True:
        write(1, b"noise\n" * 10_000)


write(health, good)
if "output" in sys.argv:
    threading.Thread(target=shout, daemon=True).start()
while True:
    write(health, good * 500 + b"garbage\n" * 500 + b"HEALTH|" + b"y" * 10_000_000 + b"\n")
