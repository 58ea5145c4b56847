"""Decode the bytes that a terminal sends into names of keys."""

from __future__ import annotations

import codecs
import re

ESCAPE = "\x1b"
NAMES = {
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\b": "backspace",
    "\x15": "clear",
    ESCAPE: "escape",
    f"{ESCAPE}[A": "up",
    f"{ESCAPE}[B": "down",
    f"{ESCAPE}[C": "right",
    f"{ESCAPE}[D": "left",
    f"{ESCAPE}OA": "up",
    f"{ESCAPE}OB": "down",
    f"{ESCAPE}OC": "right",
    f"{ESCAPE}OD": "left",
    f"{ESCAPE}[5~": "page up",
    f"{ESCAPE}[6~": "page down",
    f"{ESCAPE}[H": "home",
    f"{ESCAPE}[F": "end",
    f"{ESCAPE}OH": "home",
    f"{ESCAPE}OF": "end",
    f"{ESCAPE}[1~": "home",
    f"{ESCAPE}[4~": "end",
}
# A complete escape sequence, and the beginning of one.
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|[^\[O])", re.DOTALL)
_BEGINNING = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O)?", re.DOTALL)


class Keyboard:
    """Decodes input that arrives in arbitrary pieces."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""

    @property
    def has_pending_input(self) -> bool:
        """Whether the input ends with the beginning of a sequence, which may also be the key Escape: a timeout decides."""
        return bool(self._pending)

    def feed(self, data: bytes) -> list[str]:
        text = self._pending + self._decoder.decode(data)
        self._pending = ""
        keys: list[str] = []
        while text:
            if text[0] != ESCAPE:
                keys.append(NAMES.get(text[0], text[0]))
                text = text[1:]
            elif found := _SEQUENCE.match(text):
                if (name := NAMES.get(found[0])) is not None:
                    keys.append(name)
                text = text[found.end() :]
            elif _BEGINNING.fullmatch(text):
                self._pending, text = text, ""
            else:  # an invalid sequence: drop its escape character
                text = text[1:]
        return keys

    def flush_escape(self) -> list[str]:
        """Report the key Escape, after the time for a sequence has passed."""
        pending, self._pending = self._pending, ""
        return ["escape"] if pending else []
