"""A process that counts files in its health frames and prints each, until it is ended."""

import json
import os
import threading

component = os.environ["LIVENESS_COMPONENT_ID"]
health = int(os.environ["LIVENESS_HEALTH_FD"])
pause = threading.Event()
files = 0
while not pause.wait(0.2):
    files += 1
    frame = {"component_id": component, "status": "healthy", "current_job": f"file_{files}", "files": files}
    os.write(
        health, b"HEALTH|" + json.dumps({**frame, "load": files / 8, "stage": "tagging"}).encode() + b"\n"
    )
    print(f"processed file_{files}", flush=True)
