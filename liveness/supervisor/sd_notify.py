"""Tells systemd, or another supervisor, how this supervisor is (Type=notify)."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from liveness.clock import Clock


class SdNotify:
    def __init__(self, environ: Mapping[str, str], clock: Clock) -> None:
        self._clock = clock
        self._path = environ.get("NOTIFY_SOCKET", "")
        self._watchdog_s = self._watchdog_interval(environ)

    def _watchdog_interval(self, environ: Mapping[str, str]) -> float:
        """Half of what systemd allows; 0 without a watchdog."""
        microseconds, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
        if not microseconds.isdigit() or (pid and pid != str(os.getpid())):
            return 0
        return int(microseconds) / 2_000_000

    def send(self, **fields: str | int) -> None:
        """Send fields such as READY=1. Whoever started us may have gone; that is no reason to fail."""
        if not self._path:
            return
        address = "\0" + self._path[1:] if self._path.startswith("@") else self._path
        text = "\n".join(f"{name.upper()}={value}" for name, value in fields.items())
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto(text.encode(), address)
        except OSError:
            pass

    def begin_reload(self) -> None:
        """READY=1 ends it. systemd compares the time with that of its own request (Type=notify-reload)."""
        self.send(reloading=1, monotonic_usec=self._clock.monotonic_ms() * 1_000)

    async def feed_watchdog(self) -> None:
        """Say from the event loop that it still turns."""
        while self._watchdog_s:
            self.send(watchdog=1)
            await self._clock.sleep(self._watchdog_s * 1_000)
