"""A process that is paused and resumed by signals, which would end it before it has handlers for them."""

import json
import os
import signal

signal.signal(signal.SIGUSR1, lambda number, frame: print("paused", flush=True))
signal.signal(signal.SIGUSR2, lambda number, frame: print("resumed", flush=True))
frame = {"component_id": os.environ["LIVENESS_COMPONENT_ID"], "status": "healthy"}
os.write(int(os.environ["LIVENESS_HEALTH_FD"]), b"HEALTH|" + json.dumps(frame).encode() + b"\n")
while True:
    signal.pause()
