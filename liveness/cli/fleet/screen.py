"""The terminal as a window on the fleet: drawn again when something changes, and given back as it was."""

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
from liveness.cli.fleet.choices import Choices, Sort, press
from liveness.cli.fleet.keyboard import Keyboard
from liveness.cli.fleet.reading import WORKERS_MAX, Query, Reader, Snapshot
from liveness.cli.fleet.view import Picture, View
from liveness.clock import Clock

DRAW_S = 1.0
"""Leases run down between two looks at the server."""
ESCAPE_S = 0.05
"""If nothing follows for so long, it was the key Escape and not the beginning of another."""
STALE_INTERVALS = 3
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INPUT_BYTES_MAX = 4_096
AHEAD = 100
"""Workers are read in steps of so many, so that moving by a line asks for nothing new."""


def first_query(namespace: str, rows: int) -> Query:
    return _query(namespace, Choices(), rows)


def _query(namespace: str, choices: Choices, rows: int) -> Query:
    by_key = choices.sort is Sort.KEY and not choices.reverse
    # One screenful more than is seen.
    needed = -(-(choices.first + 2 * rows) // AHEAD) * AHEAD if by_key else WORKERS_MAX
    return Query(namespace=namespace, where=choices.where, workers=needed)


class Screen:
    def __init__(
        self, console: Console, client: Client, clock: Clock, interval_s: float, query: Query, seen: Snapshot
    ) -> None:
        self._console = console
        self._clock = clock
        self._picture = Picture(
            snapshot=seen,
            choices=Choices(),
            now_ms=clock.monotonic_ms(),
            namespace=query.namespace,
            fresh_ms=round(STALE_INTERVALS * 1_000 * max(interval_s, 1)),
        )
        self._keyboard = Keyboard()
        self._typed: list[bytes] = []
        self._changed = asyncio.Event()
        self._exit_code: int | None = None
        self._to_the_background = False
        self._loop = asyncio.get_running_loop()
        self._reader = Reader(
            client,
            clock,
            interval_s,
            query,
            on_read=lambda snapshot: self._from_reader(snapshot=snapshot, trouble=""),
            on_trouble=lambda why: self._from_reader(trouble=why),
        )

    async def run(self) -> int:
        """Until somebody has seen enough. Returns the exit code."""
        for number in ENDING:
            self._loop.add_signal_handler(number, self._end, 128 + number)
        self._loop.add_signal_handler(signal.SIGWINCH, self._changed.set)
        self._loop.add_signal_handler(signal.SIGTSTP, self._leave)
        self._loop.add_reader(sys.stdin.fileno(), self._on_input)
        self._reader.start()
        try:
            while self._exit_code is None:
                try:
                    with _window(self._console) as live:
                        await self._show(live)
                except (OSError, termios.error):
                    if self._exit_code is None:
                        raise
                    # Nothing can be given back to a terminal that is gone.
                if self._to_the_background:
                    self._to_the_background = False
                    os.kill(os.getpid(), signal.SIGSTOP)  # here it stands until the shell brings it back
        finally:
            self._reader.close()
            self._loop.remove_reader(sys.stdin.fileno())
        return self._exit_code

    # -- what comes from elsewhere is only noted down: what goes wrong with it is to end `run`

    def _end(self, exit_code: int) -> None:
        self._exit_code = exit_code
        self._changed.set()

    def _leave(self) -> None:
        self._to_the_background = True
        self._changed.set()

    def _on_input(self) -> None:
        try:
            data = os.read(sys.stdin.fileno(), INPUT_BYTES_MAX)
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(sys.stdin.fileno())
            self._end(128 + signal.SIGHUP)  # the terminal is gone
        self._typed.append(data)
        self._changed.set()

    def _from_reader(self, **news: Any) -> None:
        self._loop.call_soon_threadsafe(self._hear, news)

    def _hear(self, news: dict[str, Any]) -> None:
        self._picture = replace(self._picture, **news)
        self._changed.set()

    # -- the window

    async def _show(self, live: Live) -> None:
        while True:
            self._changed.clear()
            typed, self._typed = b"".join(self._typed), []
            self._press(self._keyboard.feed(typed))
            if self._exit_code is not None or self._to_the_background:
                return
            self._draw(live)
            escape = self._keyboard.waits
            try:
                async with asyncio.timeout(ESCAPE_S if escape else DRAW_S):
                    await self._changed.wait()
            except TimeoutError:
                if escape:
                    self._press(self._keyboard.give_up())

    def _press(self, keys: list[str]) -> None:
        for key in keys:
            width, height = self._console.size
            room = View(self._picture).room(width, height)
            choices = press(self._picture.choices, key, room)
            if choices is None:
                self._end(0)
                return
            self._picture = replace(self._picture, choices=choices)
            self._reader.ask(_query(self._picture.namespace, choices, room.rows), paused=choices.paused)

    def _draw(self, live: Live) -> None:
        if not self._picture.choices.paused:
            self._picture = replace(self._picture, now_ms=self._clock.monotonic_ms())
        live.update(View(self._picture), refresh=True)


@contextmanager
def _window(console: Console) -> Iterator[Live]:
    """The whole terminal, and each key as soon as it is pressed; afterwards everything as it was."""
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    live = Live(
        console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
    )
    try:
        tty.setcbreak(keyboard)
        with live:
            yield live
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
