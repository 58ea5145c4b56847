"""Every relative link of the documentation leads to a file of the repository, and every anchor to a heading."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(
    [
        *(ROOT / page for page in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md")),
        *(ROOT / page for page in ("CHANGELOG.md", "deploy/README.md", "examples/README.md")),
        *(ROOT / "docs").rglob("*.md"),
    ]
)

CODE = re.compile(r"^(```|~~~).*?^\1[^\n]*$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)|^\[[^\]]+\]:\s+(\S+)", re.MULTILINE)
HTML_LINK = re.compile(r"(?:src|href)=\"([^\"]+)\"")
HEADING = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t]*#*$", re.MULTILINE)
SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def prose(text: str) -> str:
    """The text without code. Inline code is emptied, not removed: a link's text may consist of it."""
    return CODE.sub("", text)


def links(page: Path) -> list[str]:
    text = prose(page.read_text(encoding="utf-8"))
    found = [first or second for first, second in LINK.findall(text)] + HTML_LINK.findall(text)
    return [link for link in found if not SCHEME.match(link)]


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(
        r"^(```|~~~).*?^\1[^\n]*$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    made: list[str] = []
    for heading in HEADING.findall(text):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        repeated = sum(1 for anchor in made if re.fullmatch(rf"{re.escape(slug)}(-\d+)?", anchor))
        made.append(f"{slug}-{repeated}" if slug in made else slug)
    return frozenset(made)


def problem(page: Path, link: str) -> str | None:
    path, _, anchor = unquote(link).partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.is_relative_to(ROOT):
        return f"{link} leads out of the repository"
    if not target.exists():
        return f"{link}: there is no such file"
    if anchor and target.suffix == ".md" and anchor not in anchors(target):
        return f"{link}: the page has no such heading"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_resolve(page: Path) -> None:
    assert [found for link in links(page) if (found := problem(page, link))] == []


def test_the_check_finds_links_and_notices_broken_ones(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `name`, twice\n## Part\n## Part\n[a](one.md), ![b](<two.png> 'title'), [`c`](#part-1)\n"
        '[d]: three.md#x\n<img src="four.svg">\n`[not](code.md)` <https://a.example>, [e](https://a.example)\n'
        "```\n[not](code.md)\n# no heading\n```\n",
        encoding="utf-8",
    )
    assert links(page) == ["one.md", "two.png", "#part-1", "three.md#x", "four.svg"]
    assert anchors(page) == {"a-name-twice", "part", "part-1"}
    assert problem(ROOT / "README.md", "no/such/file.md") == "no/such/file.md: there is no such file"
    assert problem(ROOT / "README.md", "docs/http.md#nothing") == (
        "docs/http.md#nothing: the page has no such heading"
    )
    assert problem(ROOT / "README.md", "../elsewhere.md") == "../elsewhere.md leads out of the repository"
    assert problem(ROOT / "README.md", "docs/operations.md#rolling-upgrade") is None


def test_the_documentation_contains_links() -> None:
    assert sum(len(links(page)) for page in PAGES) > 50
