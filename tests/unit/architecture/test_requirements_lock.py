"""requirements.lock, from which the container installs, agrees with constraints.txt and has a hash for everything."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def releases(text: str) -> dict[str, str]:
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", text, re.MULTILINE)
    return {normal(name): version for name, version in found}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_names_and_versions_agree_with_the_constraints() -> None:
    constraints = releases((ROOT / "constraints.txt").read_text())
    locked = releases((ROOT / "requirements.lock").read_text())
    assert {"grpcio", "sqlalchemy", "setuptools"} <= locked.keys()
    assert {name: constraints.get(name) for name in locked} == locked, "run scripts/renew_lock.py"


def test_everything_that_a_server_needs_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["server"]]
    names = {normal(re.split(r"[^A-Za-z0-9._-]", requirement)[0]) for requirement in needed}
    locked = releases((ROOT / "requirements.lock").read_text())
    assert names - locked.keys() == set(), "run scripts/renew_lock.py"
    # What these in turn need.
    assert {"cffi", "greenlet", "typing-extensions"} <= locked.keys()


def test_every_release_has_a_hash_and_no_index_is_named() -> None:
    text = (ROOT / "requirements.lock").read_text()
    for part in text.replace("\\\n", " ").splitlines():
        assert part.startswith("#") or re.fullmatch(r"\S+==\S+(\s+--hash=sha256:[0-9a-f]{64})+", part), part
    assert "://" not in text


def test_the_container_installs_nothing_without_a_hash() -> None:
    installs = [
        line for line in (ROOT / "deploy/Containerfile").read_text().splitlines() if "pip install" in line
    ]
    assert all("--require-hashes" in line or "--no-deps" in line for line in installs)
