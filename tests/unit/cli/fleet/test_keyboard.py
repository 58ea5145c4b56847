"""Keys out of bytes, in whatever pieces they come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.cli.fleet.keyboard import NAMES, Keyboard


def pressed(*pieces: bytes) -> list[str]:
    keyboard = Keyboard()
    keys = [key for piece in pieces for key in keyboard.feed(piece)]
    return keys + keyboard.flush_escape()


@pytest.mark.parametrize("sequence", [sequence for sequence in NAMES if len(sequence) > 1])
def test_a_sequence_is_a_key_wherever_it_is_cut(sequence: str) -> None:
    data = sequence.encode()
    for cut in range(len(data) + 1):
        assert pressed(data[:cut], data[cut:]) == [NAMES[sequence]]


def test_text_is_keys_one_by_one() -> None:
    assert pressed("aß漢 \r".encode()) == ["a", "ß", "漢", " ", "enter"]
    assert pressed("ß".encode()[:1], "ß".encode()[1:]) == ["ß"]


def test_escape_is_known_by_what_does_not_follow() -> None:
    keyboard = Keyboard()
    assert keyboard.feed(b"\x1b") == []
    assert keyboard.has_pending_input
    assert keyboard.flush_escape() == ["escape"]
    assert not keyboard.has_pending_input


def test_what_no_key_is_known_for_is_dropped_whole() -> None:
    assert pressed(b"\x1b[200~a\x1b[1;5Cb\x1bxc") == ["a", "b", "c"]


@given(st.binary(max_size=200), st.integers(0, 200))
def test_no_bytes_upset_it(data: bytes, cut: int) -> None:
    assert all(key in NAMES.values() or len(key) == 1 for key in pressed(data[:cut], data[cut:]))
