"""A process that writes health frames by hand: works on the job that it is given, and prints what it is told."""

import json
import os
import sys
import threading

component = os.environ["LIVENESS_COMPONENT_ID"]
health = int(os.environ["LIVENESS_HEALTH_FD"])
job = sys.argv[1] if len(sys.argv) > 1 else None


def listen() -> None:
    with os.fdopen(int(os.environ["LIVENESS_CONTROL_FD"])) as control:
        for line in control:
            print("told", line, end="", flush=True)


threading.Thread(target=listen, daemon=True).start()
print("started", flush=True)
pause = threading.Event()
while not pause.wait(0.1):
    frame = {"component_id": component, "status": "healthy", "current_job": job}
    os.write(health, b"HEALTH|" + json.dumps(frame).encode() + b"\n")
