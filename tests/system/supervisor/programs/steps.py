"""A process that does what its arguments say, one after the other:

job=NAME        says that it works on this job, and none= that it works on none
until=FILE      waits until the file exists
once=FILE       goes on with the next argument only if this process creates the file, and otherwise with the one after it
exit=CODE, kill=SIGNAL
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

health = int(os.environ["LIVENESS_HEALTH_FD"])


def tell(job: str | None) -> None:
    frame = {"component_id": os.environ["LIVENESS_COMPONENT_ID"], "status": "healthy", "current_job": job}
    os.write(health, b"HEALTH|" + json.dumps(frame).encode() + b"\n")


steps = iter(sys.argv[1:])
for step in steps:
    name, _, value = step.partition("=")
    if name in ("job", "none"):
        tell(value or None)
    elif name == "until":
        while not Path(value).exists():
            time.sleep(0.01)
    elif name == "once":
        try:
            Path(value).touch(exist_ok=False)
        except FileExistsError:
            next(steps)
    elif name == "exit":
        os._exit(int(value))
    elif name == "kill":
        os.kill(os.getpid(), signal.Signals[value])
signal.pause()
