"""A planted bug: one small change of one file. The bugs are data: see `bugs.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUGS = Path(__file__).with_name("bugs.toml")


class DoesNotApply(Exception):
    """The code has changed, and a bug's `old` text is not there exactly once: adapt the bug in `bugs.toml`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    name: str
    invariant: int
    breaks: str
    """The effect on a user, as a sentence."""
    file: str
    old: str
    new: str
    harnesses: tuple[str, ...]
    """Paths for pytest that should catch the bug, cheapest first."""

    def mutate(self, text: str) -> str:
        """Return the file's text with the bug in it."""
        found = text.count(self.old)
        if found != 1:
            raise DoesNotApply(f"{self.name}: its `old` text occurs {found} times in {self.file}, not once")
        return text.replace(self.old, self.new)

    def plant(self, tree: Path) -> None:
        path = tree / self.file
        path.write_text(self.mutate(path.read_text(encoding="utf-8")), encoding="utf-8")


def read_bugs(path: Path = BUGS) -> tuple[dict[int, str], list[Bug]]:
    """Return the invariants by number, and the bugs in file order."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    invariants = {int(number): name for number, name in document["invariants"].items()}
    bugs = [Bug(**{**fields, "harnesses": tuple(fields["harnesses"])}) for fields in document["bug"]]
    return invariants, bugs
