"""The version of this program. Between releases it names the commit, so that `liveness nodes list` shows which nodes of an
upgrade run the new build.

`pyproject.toml` takes the version of a package from here, too: a build loads this file alone, without the rest of liveness
and its dependencies. No `git` program is needed.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

RELEASE = "0.2.0.dev0"
"""The release, or with `.dev0` the one that this tree becomes."""
COMMIT_DIGITS = 10


def find_version(root: Path, release: str = RELEASE) -> str:
    """`root`: the folder that holds the package: a source tree, or the place of an installation."""
    if not (root / "pyproject.toml").exists():
        try:
            return version("liveness")
        except PackageNotFoundError:
            return release
    if (stated := _read_line(root / "PKG-INFO", "Version: ")) is not None:
        return stated  # a source distribution, whose version was settled when it was made
    if ".dev" not in release:
        return release
    commit = _read_line(root / ".commit", "") or _checked_out_commit(root / ".git")
    return f"{release}+g{commit[:COMMIT_DIGITS]}" if commit else release


def _checked_out_commit(git: Path) -> str | None:
    """The commit of a checkout: `git` is its folder, or for a worktree a file that names another folder."""
    if (elsewhere := _read_line(git, "gitdir: ")) is not None:
        git = git.parent / elsewhere
    head = _read_line(git / "HEAD", "")
    if head is None or not head.startswith("ref: "):
        return head
    reference = head.removeprefix("ref: ")
    shared = git / (_read_line(git / "commondir", "") or "")
    if (commit := _read_line(git / reference, "") or _read_line(shared / reference, "")) is not None:
        return commit
    for line in _lines(shared / "packed-refs"):
        commit, _, name = line.partition(" ")
        if name == reference:
            return commit
    return None


def _read_line(path: Path, prefix: str) -> str | None:
    """The rest of the first line that starts with `prefix`."""
    return next((line.removeprefix(prefix) for line in _lines(path) if line.startswith(prefix)), None)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []


VERSION = find_version(Path(__file__).resolve().parent.parent)
