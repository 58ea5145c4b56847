"""The hand-written files of the product, parsed once for all rules about them."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
LINK_TO_TASKS = ROOT / "liveness" / "tasks"
GENERATED = ROOT / "liveness" / "v1"


@dataclass(frozen=True, eq=False)
class Source:
    path: str
    module: str
    tree: ast.Module
    nodes: tuple[ast.AST, ...]
    """All nodes of the tree."""


def parse_source(path: str, module: str, text: str) -> Source:
    tree = ast.parse(text)
    return Source(path, module, tree, tuple(ast.walk(tree)))


@cache
def sources() -> tuple[Source, ...]:
    """Return every hand-written file of the product."""
    return tuple(
        _read(path)
        for package in ("liveness", "tasks")
        for path in sorted((ROOT / package).rglob("*.py"))
        if not path.is_relative_to(LINK_TO_TASKS) and not path.is_relative_to(GENERATED)
    )


def _read(path: Path) -> Source:
    relative = path.relative_to(ROOT)
    parts = relative.with_suffix("").parts
    if parts[0] == "tasks":
        parts = ("liveness", *parts)
    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return parse_source(relative.as_posix(), module, path.read_text(encoding="utf-8"))
