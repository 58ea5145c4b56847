"""Several processes share the files of a folder and process each file once, without a scheduler.

A process claims each file that it finds. A claim is exclusive while its process lives, and ends with it: another process
then claims the file of a process that was killed. This example does not use asyncio.

    liveness serve                                      in one terminal
    python examples/claim_files.py some/folder          in two others; kill -9 one of them and watch the other

For each FILE.txt the program writes FILE.words, which contains the number of words.
"""

import argparse
import time
from pathlib import Path

from liveness import Worker
from liveness.sdk import ActivityFinished, ActivityHeld, ActivityLost, Task


def count_words(path: Path, task: Task, seconds: float) -> int:
    print(f"{path.name}: claimed, attempt {task.attempt}", flush=True)
    # A thread cannot be cancelled, so it checks regularly whether the claim still holds.
    if task.lost.wait_blocking(timeout=seconds):
        task.check()
    return len(path.read_text().split())


def write(path: Path, words: int, task: Task) -> None:
    """Write the result atomically, and only while the claim holds."""
    draft = path.with_suffix(f".draft-{task.attempt}")
    draft.write_text(f"{words}\n")
    task.check()
    draft.rename(path.with_suffix(".words"))


def visit(worker: Worker, path: Path, seconds: float) -> bool:
    """Process the file if it can be claimed. Returns whether it is done."""
    try:
        with worker.claim(str(path.resolve()), type="count-words") as task:
            words = count_words(path, task, seconds)
            write(path, words, task)
            task.result = {"words": words}
    except ActivityFinished:
        return True
    except ActivityHeld:
        return False  # another process holds it; if that one dies, the file can be claimed
    except ActivityLost as error:
        print(f"{path.name}: {error}", flush=True)
        return False
    print(f"{path.name}: {words} words", flush=True)
    return True


def main(address: str, folder: Path, seconds: float) -> None:
    with Worker(address, task_queue="claim-files", disconnect_grace=2) as worker:
        waiting = sorted(folder.glob("*.txt"))
        while waiting:
            waiting = [path for path in waiting if not visit(worker, path, seconds)]
            if waiting:
                time.sleep(0.2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--address", default="127.0.0.1:7400")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long a file takes")
    options = parser.parse_args()
    main(options.address, options.folder, options.seconds)
