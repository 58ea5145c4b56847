"""examples/supervised"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from liveness.domain.component import ComponentStatus
from tests.system.cli.server_processes import environment, liveness_command
from tests.system.examples.programs import EXAMPLES
from tests.system.supervisor.supervised import LIMIT_S, Supervised, eventually, kill

TEXTS = {f"text_{number}": "word " * number for number in range(1, 7)}


@contextmanager
def supervising(folder: Path, address: str) -> Iterator[subprocess.Popen[bytes]]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = liveness_command(
        "supervise", "--config", "workers.toml", "--address", address, "--state-dir", "state"
    )
    with (folder.parent / "supervisor.log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment(PATH=path), stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_killed_process_is_replaced_and_its_file_counted(address: str, tmp_path: Path) -> None:
    folder = tmp_path / "supervised"
    shutil.copytree(EXAMPLES / "supervised", folder)
    config = folder / "workers.toml"
    # Short, but long enough that a process is seen at work also on a busy machine.
    config.write_text(config.read_text().replace('SECONDS_PER_FILE = "1"', 'SECONDS_PER_FILE = "0.6"'))
    inbox = folder / "inbox"
    inbox.mkdir()
    for name, text in TEXTS.items():
        (inbox / f"{name}.md").write_text(text)
    server = Supervised(tmp_path, address, "default")
    with supervising(folder, address) as process:
        working = server.when(ComponentStatus.HEALTHY, wanted=lambda each: each.current_job, group="words")
        kill(working)
        again = server.when(
            ComponentStatus.HEALTHY, wanted=lambda each: each.restart_count == 1, group="words"
        )
        assert again.process_id != working.process_id
        eventually(
            lambda: all(path.suffix == ".words" for path in inbox.iterdir()), "not all files were counted"
        )
        counted = {path.stem: int(path.read_text()) for path in inbox.iterdir()}
        assert counted == {name: len(text.split()) for name, text in TEXTS.items()}
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
    server.close()
