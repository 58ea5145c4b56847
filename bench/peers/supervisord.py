"""supervisord with one program of many processes, none of which counts as crashed for ending early."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from bench.servers import Unavailable

END_SECONDS_MAX = 60


@contextmanager
def supervising(folder, script, processes):
    """Run the script of bash with `$0` as the number of the process. Yields the process of supervisord."""
    if find_spec("supervisor") is None:
        raise Unavailable("the supervisor wheel is not installed")
    (Path(folder, "program.sh")).write_text(script)
    config = Path(folder, "supervisord.conf")
    config.write_text(
        f"""[supervisord]
nodaemon=true
minfds={4 * processes + 1_000}
logfile={folder}/supervisord.log
pidfile={folder}/supervisord.pid
childlogdir={folder}
[program:bench]
command=bash -c '. {folder}/program.sh' %(process_num)d
process_name=%(process_num)d
numprocs={processes}
startsecs=0
autorestart=true
"""
    )
    command = [sys.executable, "-W", "ignore", "-m", "supervisor.supervisord", "-c", str(config)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(END_SECONDS_MAX)
