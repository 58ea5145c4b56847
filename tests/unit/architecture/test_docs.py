"""The glossary, ARCHITECTURE and CONTRIBUTING name only files, classes and members that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.unit.architecture.source_files import ROOT, sources

PAGES = ("docs/glossary.md", "ARCHITECTURE.md", "CONTRIBUTING.md")
# The pages leave out these parts of a path.
BASES = (ROOT, ROOT / "liveness", ROOT / "liveness" / "dashboard" / "static", ROOT / "bench")
SOURCES = ("liveness", "tasks", "bench", "tests", "scripts")

_CODE = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)+/?")
_FILE_NAME = re.compile(r"\w+\.(?:py|js|html|c|sql|toml)")
_MEMBER = re.compile(r"([A-Z]\w+)\.([a-z_]\w*)")
_LINK = re.compile(r"\]\(([^)#:]+)\)")


def terms(page: str) -> set[str]:
    return set(_CODE.findall((ROOT / page).read_text()))


@cache
def file_names() -> frozenset[str]:
    return frozenset(path.name for folder in SOURCES for path in (ROOT / folder).rglob("*.*"))


@cache
def members() -> frozenset[tuple[str, str]]:
    """All pairs of a class and the name of one of its methods or attributes."""
    return frozenset(
        (node.name, name)
        for source in sources()
        for node in source.nodes
        if isinstance(node, ast.ClassDef)
        for name in _members(node)
    )


def _members(node: ast.ClassDef) -> Iterator[str]:
    for child in ast.walk(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child.name
        elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            yield child.target.id
        elif isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store):
            yield child.attr


@pytest.mark.parametrize("page", PAGES)
def test_every_path_exists(page: str) -> None:
    paths = {term for term in terms(page) if _PATH.fullmatch(term)}
    missing = {path for path in paths if not any((base / path).exists() for base in BASES)}
    assert paths
    assert not missing


@pytest.mark.parametrize("page", PAGES)
def test_every_file_name_without_a_folder_exists(page: str) -> None:
    assert not {term for term in terms(page) if _FILE_NAME.fullmatch(term)} - file_names()


@pytest.mark.parametrize("page", PAGES)
def test_every_link_to_a_file_leads_to_it(page: str) -> None:
    links = set(_LINK.findall((ROOT / page).read_text()))
    assert not {link for link in links if not ((ROOT / page).parent / link).exists()}


def test_every_class_member_exists() -> None:
    named = {match.groups() for page in PAGES for term in terms(page) if (match := _MEMBER.fullmatch(term))}
    assert named
    assert not named - members()
