"""The dashboard's files are complete, load nothing from other sites, and satisfy a strict content security
policy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from liveness import dashboard

STATIC = Path(dashboard.__file__).parent / "static"
VENDOR = STATIC / "vendor"
MODULES = sorted(path for path in STATIC.rglob("*.js") if VENDOR not in path.parents)
VENDORED_BYTES_MAX = 80_000
LINES_MAX = 450


def static_name(path: Path) -> str:
    return path.relative_to(STATIC).as_posix()


@pytest.mark.parametrize("module", MODULES, ids=static_name)
def test_a_module_never_turns_text_into_markup_or_code(module: Path) -> None:
    text = module.read_text()
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|dangerouslySet|\beval\(|new Function|srcdoc"
    )
    assert not re.search(forbidden, text)
    assert len(text.splitlines()) <= LINES_MAX


@pytest.mark.parametrize("module", MODULES, ids=static_name)
def test_a_module_imports_only_existing_files(module: Path) -> None:
    for target in re.findall(
        r"""^(?:import|export)\b[^;]*?\bfrom '([^']+)'""", module.read_text(), re.MULTILINE
    ):
        assert target.startswith("."), f"{target} is not a relative path"
        assert (module.parent / target).resolve().is_file(), target


def test_the_page_preloads_every_module() -> None:
    page = (STATIC / "index.html").read_text()
    loaded = set(re.findall(r'(?:href|src)="/static/([^"]+\.js)"', page))
    assert loaded == {static_name(path) for path in STATIC.rglob("*.js")}


def test_the_page_has_no_inline_code_and_no_external_resources() -> None:
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|https?:|//", page.removeprefix("<!doctype html>"))
    assert not re.search(r"<script(?![^>]*\ssrc=)", page)
    for path in re.findall(r'(?:href|src)="/static/([^"]+)"', page):
        assert (STATIC / path).is_file(), path


def test_modules_and_styles_load_nothing_from_other_sites() -> None:
    for path in [*MODULES, *STATIC.rglob("*.css")]:
        found = set(re.findall(r"https?://[^\s'\"`)]+|url\(([^)]*)\)|@import", path.read_text()))
        assert found <= {"", "#absent"}, (static_name(path), found)


def test_vendored_files_are_small_and_have_licences() -> None:
    size = sum(path.stat().st_size for path in VENDOR.iterdir() if path.is_file())
    assert size < VENDORED_BYTES_MAX
    assert {path.stem for path in (VENDOR / "licenses").iterdir()} == {"preact", "htm", "uplot"}
    assert all("opyright" in path.read_text() for path in (VENDOR / "licenses").iterdir())
