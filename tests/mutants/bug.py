"""What a planted bug is, and how it is planted. They are data: see `bugs.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUGS = Path(__file__).with_name("bugs.toml")


class DoesNotApply(Exception):
    """The tree has changed under a planted bug: it must be planted anew, where the same mistake would be made today."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    name: str
    invariant: int
    breaks: str
    """What a user would suffer."""
    file: str
    old: str
    new: str
    harnesses: tuple[str, ...]
    """Who should notice, cheapest first: what pytest is given."""

    def mutate(self, text: str) -> str:
        """The file's text with the bug in it."""
        found = text.count(self.old)
        if found != 1:
            raise DoesNotApply(f"{self.name}: its `old` text occurs {found} times in {self.file}, not once")
        return text.replace(self.old, self.new)

    def plant(self, tree: Path) -> None:
        path = tree / self.file
        path.write_text(self.mutate(path.read_text(encoding="utf-8")), encoding="utf-8")


def read_bugs(path: Path = BUGS) -> tuple[dict[int, str], list[Bug]]:
    """The invariants by number, and the bugs in the order of their file."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    invariants = {int(number): name for number, name in document["invariants"].items()}
    bugs = [Bug(**{**fields, "harnesses": tuple(fields["harnesses"])}) for fields in document["bug"]]
    return invariants, bugs
