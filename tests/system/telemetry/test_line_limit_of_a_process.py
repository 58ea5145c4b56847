"""What a process logs is limited, whoever writes it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

PROGRAM = """
import logging
import structlog
from liveness.telemetry import logs

logs.LINES_BURST, logs.LINES_PER_S = 10, 0
logs.configure_logging("info", "json")
for number in range(100):
    structlog.get_logger().warning("request failed", why=str(number))
    structlog.get_logger().critical("disk broken", why=str(number))
    logging.getLogger("asyncio").error("socket.accept() out of system resource %s", number)
structlog.get_logger().info("something else")
logging.getLogger("grpc").error("once")
"""


def test_our_own_lines_are_limited_by_event_and_those_of_libraries_by_logger() -> None:
    """In a process of its own, because logging is configured once per process."""
    written = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    events = Counter(json.loads(line)["event"].rstrip(" 0123456789") for line in written.stderr.splitlines())
    assert events == {
        "request failed": 10,
        "disk broken": 100,  # what ends the process is never dropped
        "socket.accept() out of system resource": 10,
        "something else": 1,
        "once": 1,
    }
