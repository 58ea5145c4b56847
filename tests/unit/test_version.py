"""The version that a build between releases shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from liveness.version import find_version

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SHOWN = "1.2.0.dev0+g0123456789"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").touch()
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def branch(root: Path) -> None:
    write(root / ".git/HEAD", "ref: refs/heads/topic/x\n")
    write(root / ".git/refs/heads/topic/x", f"{COMMIT}\n")


def packed_branch(root: Path) -> None:
    write(root / ".git/HEAD", "ref: refs/heads/main\n")
    write(root / ".git/packed-refs", f"# pack-refs\n{'f' * 40} refs/heads/mai\n{COMMIT} refs/heads/main\n")


def detached(root: Path) -> None:
    write(root / ".git/HEAD", f"{COMMIT}\n")


def worktree(root: Path) -> None:
    write(root / ".git", "gitdir: elsewhere/.git/worktrees/w\n")
    write(root / "elsewhere/.git/worktrees/w/HEAD", "ref: refs/heads/w\n")
    write(root / "elsewhere/.git/worktrees/w/commondir", "../..\n")
    write(root / "elsewhere/.git/refs/heads/w", f"{COMMIT}\n")


def given_to_the_build(root: Path) -> None:
    write(root / ".commit", f"{COMMIT}\n")


@pytest.mark.parametrize("make", [branch, packed_branch, detached, worktree, given_to_the_build])
def test_a_source_tree_between_releases_shows_its_commit(root: Path, make: object) -> None:
    assert callable(make)
    make(root)
    assert find_version(root, "1.2.0.dev0") == SHOWN
    assert find_version(root, "1.2.0") == "1.2.0"


def test_a_source_tree_without_git_shows_the_release_that_it_becomes(root: Path) -> None:
    assert find_version(root, "1.2.0.dev0") == "1.2.0.dev0"


def test_a_branch_without_a_commit_is_no_error(root: Path) -> None:
    write(root / ".git/HEAD", "ref: refs/heads/main\n")
    assert find_version(root, "1.2.0.dev0") == "1.2.0.dev0"


def test_a_source_distribution_keeps_the_version_that_it_was_made_with(root: Path) -> None:
    write(root / "PKG-INFO", f"Metadata-Version: 2.4\nName: liveness\nVersion: {SHOWN}\n")
    branch(root)
    assert find_version(root, "1.2.0.dev0") == SHOWN
