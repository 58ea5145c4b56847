"""Keys are decoded from bytes, however the bytes are split."""

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
def test_an_escape_sequence_is_one_key_wherever_it_is_split(sequence: str) -> None:
    data = sequence.encode()
    for cut in range(len(data) + 1):
        assert pressed(data[:cut], data[cut:]) == [NAMES[sequence]]


def test_each_character_of_text_is_one_key() -> None:
    assert pressed("aß漢 \r".encode()) == ["a", "ß", "漢", " ", "enter"]
    assert pressed("ß".encode()[:1], "ß".encode()[1:]) == ["ß"]


def test_a_lone_escape_becomes_a_key_when_nothing_follows() -> None:
    keyboard = Keyboard()
    assert keyboard.feed(b"\x1b") == []
    assert keyboard.has_pending_input
    assert keyboard.flush_escape() == ["escape"]
    assert not keyboard.has_pending_input


def test_unknown_escape_sequences_are_dropped_as_a_whole() -> None:
    assert pressed(b"\x1b[200~a\x1b[1;5Cb\x1bxc") == ["a", "b", "c"]


@given(st.binary(max_size=200), st.integers(0, 200))
def test_any_bytes_decode_to_valid_keys(data: bytes, cut: int) -> None:
    assert all(key in NAMES.values() or len(key) == 1 for key in pressed(data[:cut], data[cut:]))
