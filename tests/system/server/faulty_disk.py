"""A disk that can be broken and repaired under a running server, by a preloaded library."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fsync_faults.c")


class FaultyDisk:
    def __init__(self, library: Path, control: Path) -> None:
        self._control = control
        self.environ = {"LD_PRELOAD": str(library), "LIVENESS_TEST_DISK": str(control)}
        self.repair()

    def fail_to_sync(self) -> None:
        self._set_fault("fail")

    def sync_slowly(self, ms: int) -> None:
        self._set_fault(f"delay {ms}")

    def fill(self) -> None:
        self._set_fault("full")

    def repair(self) -> None:
        self._set_fault("well")

    def _set_fault(self, word: str) -> None:
        # Renamed into place, so that the library never reads a partial word.
        new = self._control.with_suffix(".new")
        new.write_text(word)
        new.replace(self._control)


def compile_library(folder: Path, source: Path = SOURCE) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to build the preloaded library")
    library = folder / f"{source.stem}.so"
    command: list[str | Path] = [
        compiler,
        "-shared",
        "-fPIC",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-o",
        library,
        source,
        "-ldl",
    ]
    subprocess.run(command, check=True)
    return library
