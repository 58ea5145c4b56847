"""Run `liveness` in this process, as if from a shell without a terminal."""

from __future__ import annotations

import json
import os
from typing import Any

from click.testing import CliRunner, Result

from liveness.cli import main
from liveness.v1.worker_pb2 import HeartbeatResult, WorkerHeartbeat
from tests.system.cli.server_processes import heartbeat

UNUSED_ADDRESS = "127.0.0.1:1"


class Shell:
    def __init__(self, address: str = UNUSED_ADDRESS, namespace: str = "default") -> None:
        self.address = address
        self.namespace = namespace

    def run(self, *args: str, stdin: str = "", **variables: str) -> Result:
        # Removes settings that the developer may have set.
        cleared = {name: None for name in os.environ if name.startswith("LIVENESS_")}
        own = {"LIVENESS_ADDRESS": self.address, "LIVENESS_NAMESPACE": self.namespace}
        return CliRunner().invoke(main, args, input=stdin, env={**cleared, **own, **variables})

    def ok(self, *args: str, stdin: str = "") -> str:
        """Return the output of a command that succeeds."""
        result = self.run(*args, stdin=stdin)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *args: str) -> Any:
        return json.loads(self.ok(*args, "--json"))

    def sentence(self, *args: str, exit_code: int = 1, **variables: str) -> str:
        """Return the one line that a failing command prints, and check that it prints nothing else."""
        result = self.run(*args, **variables)
        assert result.exit_code == exit_code, result.output
        assert result.stdout == ""
        (line,) = result.stderr.splitlines()
        assert line.startswith("error: ")
        return line.removeprefix("error: ")

    def heartbeat(self, key: str, **fields: Any) -> HeartbeatResult:
        return heartbeat(self.address, self.namespace, WorkerHeartbeat(worker_instance_key=key, **fields))
