"""A process that tells its health once, closes the pipe, and goes on."""

import json
import os
import signal

health = int(os.environ["LIVENESS_HEALTH_FD"])
frame = {"component_id": os.environ["LIVENESS_COMPONENT_ID"], "status": "healthy"}
os.write(health, b"HEALTH|" + json.dumps(frame).encode() + b"\n")
os.close(health)
while True:
    signal.pause()
