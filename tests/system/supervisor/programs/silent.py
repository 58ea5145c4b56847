"""A process that tells nothing about its health; runs until it is ended."""

import signal

print("started", flush=True)
signal.pause()
