"""A process that writes garbage, a line of 10 MB and a flood to its health pipe, and then a good frame."""

import json
import os
import signal

health = int(os.environ["LIVENESS_HEALTH_FD"])


def write(data: bytes) -> None:
    while data:
        data = data[os.write(health, data) :]


write(b"\x80\x04\x95 pickled?\n\x00\xff\xfe\nHEALTH|[]\nHEALTH|{\n")
write(b"HEALTH|" + b"x" * 10_000_000 + b"\n")
frame = {"component_id": os.environ["LIVENESS_COMPONENT_ID"], "status": "healthy", "round": 0}
for number in range(20):
    frame["round"] = number
    write((b"HEALTH|" + json.dumps(frame).encode() + b"\n") * 5_000)
print("wrote everything", flush=True)
signal.pause()
