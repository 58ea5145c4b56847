"""The work of the demo: files of random bytes, each hashed many times."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from random import Random

BLOCK_BYTES = 128 * 1024
PASS_MS = 50
"""The length of one pass with the rest after it. The rest keeps a laptop usable while a dozen workers run."""
PASSES_PER_ROUND = 8


def make_block(folder: Path, name: str, random: Random) -> None:
    (folder / name).write_bytes(random.randbytes(BLOCK_BYTES))


def digest_of(block: Path, work_ms: int, rest: Callable[[float], object]) -> str:
    """Hash the block repeatedly for about `work_ms`. `rest` is called with the seconds to wait after each pass."""
    content = block.read_bytes()
    digest = b""
    for _ in range(max(work_ms // PASS_MS, 1)):
        for _ in range(PASSES_PER_ROUND):
            digest = sha256(digest + content).digest()
        rest(PASS_MS / 1_000)
    return digest.hex()
