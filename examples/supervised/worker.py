"""Counts the words of the texts in a folder, under a supervisor. It knows nothing of servers, leases or restarts: two lines tell
its supervisor how it is.

    liveness serve                                      in one terminal
    liveness supervise --config workers.toml            in another, in this folder: two of these processes
    cp ../../*.md inbox/                                in a third; then `liveness components list`, and kill -9 one of them
"""

import os
import time
from pathlib import Path

from liveness.sdk import health

FOLDER = Path("inbox")
INDEX = os.environ.get("LIVENESS_INDEX", "0")
SECONDS = float(os.environ.get("SECONDS_PER_FILE", "1"))


def take() -> Path | None:
    """Return what the last process of this index left, or a new file. A rename succeeds for one process only."""
    for path in FOLDER.glob(f"*.taken-by-{INDEX}"):
        return path
    for path in sorted(FOLDER.glob("*.md")):
        try:
            return path.rename(f"{path}.taken-by-{INDEX}")
        except FileNotFoundError:
            pass  # another process was faster
    return None


def count(path: Path) -> None:
    words = len(path.read_text().split())
    time.sleep(SECONDS)
    path.with_name(f"{path.name.partition('.')[0]}.words").write_text(f"{words}\n")
    path.unlink()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    health.start()  # reports every few seconds, and ends this process if its supervisor dies
    health.install_signal_handler()  # on SIGTERM, the current file is finished first
    done = 0
    while health.wait_while_paused():
        path = take()
        if path is None:
            time.sleep(0.2)
            continue
        with health.job(path.name.partition(".")[0]):
            count(path)
        done += 1
        health.set(files_counted=done)
        print("counted", path.name, flush=True)
