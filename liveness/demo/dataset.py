"""The work of the demo: files of random bytes, each hashed over and over."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from random import Random

BLOCK_BYTES = 128 * 1024
PASS_MS = 50
"""A pass of hashing and a rest after it, so that a laptop stays usable while a dozen of these run."""
PASSES_PER_ROUND = 8


def make_block(folder: Path, name: str, random: Random) -> None:
    (folder / name).write_bytes(random.randbytes(BLOCK_BYTES))


def digest_of(block: Path, work_ms: int, rest: Callable[[float], object]) -> str:
    """The hash of a hash of a hash … of the block. `rest` is called with seconds to wait."""
    content = block.read_bytes()
    digest = b""
    for _ in range(max(work_ms // PASS_MS, 1)):
        for _ in range(PASSES_PER_ROUND):
            digest = sha256(digest + content).digest()
        rest(PASS_MS / 1_000)
    return digest.hex()
