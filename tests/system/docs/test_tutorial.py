"""The tutorial works as it is written: each of its commands runs, and shows what the page says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.free_ports import free_port
from tests.system.cli.server_processes import environment
from tests.system.sdk.server_process import SECONDS_MAX, until
from tests.unit.architecture.source_files import ROOT

PAGE = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r'^```(\w+) title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    language: str
    title: str
    text: str


def blocks() -> list[Block]:
    return [Block(*found) for found in BLOCK.findall(PAGE.read_text())]


class Terminals:
    """The terminals of the page, in one folder."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        port = free_port()
        self._variables = environment(
            PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            PYTHONUNBUFFERED="1",
            LIVENESS_LISTEN=f"127.0.0.1:{port}",
            LIVENESS_ADDRESS=f"127.0.0.1:{port}",
        )

    def log(self, terminal: str) -> Path:
        return self._folder / f"terminal-{terminal}.log"

    def start(self, terminal: str, command: str) -> None:
        self._stack.enter_context(self._running(terminal, command))

    @contextmanager
    def _running(self, terminal: str, command: str) -> Iterator[None]:
        with self.log(terminal).open("w") as output:
            process = subprocess.Popen(
                ["bash", "-c", command],
                cwd=self._folder,
                env=self._variables,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            yield
        finally:
            # The page kills one of its processes itself.
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(SECONDS_MAX)

    def run(self, terminal: str, command: str) -> None:
        done = subprocess.run(
            ["bash", "-c", f"set -e -o pipefail\n{command}"],
            cwd=self._folder,
            env=self._variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS_MAX,
        )
        assert done.returncode == 0, f"{command}{done.stderr}"
        self.log(terminal).write_text(done.stdout + done.stderr)

    def expect(self, terminal: str, text: str) -> None:
        """Wait until each line of the text was shown; … stands for anything."""
        for line in text.splitlines():
            pattern = ".*".join(map(re.escape, line.split("…")))
            until(partial(self._shows, terminal, pattern))

    def _shows(self, terminal: str, pattern: str) -> bool:
        return re.search(pattern, self.log(terminal).read_text()) is not None


def test_the_tutorial_works_as_it_is_written(tmp_path: Path) -> None:
    last = ""
    with ExitStack() as stack:
        terminals = Terminals(tmp_path, stack)
        for language, title, text in blocks():
            if language == "python":
                (tmp_path / title).write_text(text)
            elif language == "sh":
                last = title.removeprefix("Terminal ")[0]
                if title.endswith("keeps running"):
                    terminals.start(last, text)
                else:
                    terminals.run(last, text)
            else:
                terminals.expect(title[-1] if "terminal" in title else last, text)


def test_each_block_of_the_page_is_known() -> None:
    titles = {block.title for block in blocks()}
    assert len(blocks()) > 15
    unknown = {
        title
        for title in titles
        if not re.fullmatch(r"Terminal \d(, keeps running)?|You see( in terminal \d)?|\w+\.py", title)
    }
    assert unknown == set()
