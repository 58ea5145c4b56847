"""The full-screen view of the fleet: redraw it on changes, handle keys and signals, and restore the terminal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.live import Live

from liveness.cli.client import Client
from liveness.cli.fleet.keyboard import Keyboard
from liveness.cli.fleet.reader import WORKERS_MAX, FleetQuery, FleetReader, FleetSnapshot
from liveness.cli.fleet.view import FleetView, Frame
from liveness.cli.fleet.view_state import Sort, ViewState, handle_key
from liveness.clock import Clock

REDRAW_S = 1.0
"""The remaining times of leases change between two reads."""
ESCAPE_S = 0.05
"""An escape character without further input for this long is the key Escape, not the beginning of a sequence."""
STALE_INTERVALS = 3
EXIT_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INPUT_BYTES_MAX = 4_096
PREFETCH_STEP = 100
"""Workers are read in steps of this size, so that scrolling by a line needs no new read."""


def first_query(namespace: str, rows: int) -> FleetQuery:
    return _query(namespace, ViewState(), rows)


def _query(namespace: str, view_state: ViewState, rows: int) -> FleetQuery:
    by_key = view_state.sort is Sort.KEY and not view_state.reverse
    # Read one screen more than is shown.
    needed = -(-(view_state.first + 2 * rows) // PREFETCH_STEP) * PREFETCH_STEP if by_key else WORKERS_MAX
    return FleetQuery(namespace=namespace, where=view_state.where, workers=needed)


class Screen:
    def __init__(
        self,
        console: Console,
        client: Client,
        clock: Clock,
        interval_s: float,
        query: FleetQuery,
        snapshot: FleetSnapshot,
    ) -> None:
        self._console = console
        self._clock = clock
        self._frame = Frame(
            snapshot=snapshot,
            view_state=ViewState(),
            now_ms=clock.monotonic_ms(),
            namespace=query.namespace,
            fresh_ms=round(STALE_INTERVALS * 1_000 * max(interval_s, 1)),
        )
        self._keyboard = Keyboard()
        self._input_bytes: list[bytes] = []
        self._changed = asyncio.Event()
        self._exit_code: int | None = None
        self._is_suspending = False
        self._loop = asyncio.get_running_loop()
        self._reader = FleetReader(
            client,
            clock,
            interval_s,
            query,
            on_read=lambda snapshot: self._post_update(snapshot=snapshot, error=""),
            on_error=lambda why: self._post_update(error=why),
        )

    async def run(self) -> int:
        """Show the view until the user quits or a signal arrives. Returns the exit code."""
        for number in EXIT_SIGNALS:
            self._loop.add_signal_handler(number, self._exit, 128 + number)
        self._loop.add_signal_handler(signal.SIGWINCH, self._changed.set)
        self._loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        self._loop.add_reader(sys.stdin.fileno(), self._on_input)
        self._reader.start()
        try:
            while self._exit_code is None:
                try:
                    with _window(self._console) as live:
                        await self._run_window(live)
                except (OSError, termios.error):
                    if self._exit_code is None:
                        raise
                    # The terminal is gone, so there is nothing to restore.
                if self._is_suspending:
                    self._is_suspending = False
                    os.kill(
                        os.getpid(), signal.SIGSTOP
                    )  # the process stops here until the shell continues it
        finally:
            self._reader.close()
            self._loop.remove_reader(sys.stdin.fileno())
        return self._exit_code

    # -- callbacks only record what happened, so that a failure ends `run`

    def _exit(self, exit_code: int) -> None:
        self._exit_code = exit_code
        self._changed.set()

    def _suspend(self) -> None:
        self._is_suspending = True
        self._changed.set()

    def _on_input(self) -> None:
        try:
            data = os.read(sys.stdin.fileno(), INPUT_BYTES_MAX)
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(sys.stdin.fileno())
            self._exit(128 + signal.SIGHUP)  # the terminal is gone
        self._input_bytes.append(data)
        self._changed.set()

    def _post_update(self, **update: Any) -> None:
        self._loop.call_soon_threadsafe(self._apply_update, update)

    def _apply_update(self, update: dict[str, Any]) -> None:
        self._frame = replace(self._frame, **update)
        self._changed.set()

    # -- the window

    async def _run_window(self, live: Live) -> None:
        while True:
            self._changed.clear()
            typed, self._input_bytes = b"".join(self._input_bytes), []
            self._press(self._keyboard.feed(typed))
            if self._exit_code is not None or self._is_suspending:
                return
            self._draw(live)
            escape = self._keyboard.has_pending_input
            try:
                async with asyncio.timeout(ESCAPE_S if escape else REDRAW_S):
                    await self._changed.wait()
            except TimeoutError:
                if escape:
                    self._press(self._keyboard.flush_escape())

    def _press(self, keys: list[str]) -> None:
        for key in keys:
            width, height = self._console.size
            viewport = FleetView(self._frame).viewport(width, height)
            view_state = handle_key(self._frame.view_state, key, viewport)
            if view_state is None:
                self._exit(0)
                return
            self._frame = replace(self._frame, view_state=view_state)
            self._reader.set_query(
                _query(self._frame.namespace, view_state, viewport.rows), paused=view_state.paused
            )

    def _draw(self, live: Live) -> None:
        if not self._frame.view_state.paused:
            self._frame = replace(self._frame, now_ms=self._clock.monotonic_ms())
        live.update(FleetView(self._frame), refresh=True)


@contextmanager
def _window(console: Console) -> Iterator[Live]:
    """Take the whole terminal and read single keys; restore it afterwards."""
    keyboard = sys.stdin.fileno()
    saved = termios.tcgetattr(keyboard)
    live = Live(
        console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
    )
    try:
        tty.setcbreak(keyboard)
        with live:
            yield live
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, saved)
