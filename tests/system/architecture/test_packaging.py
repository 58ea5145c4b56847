"""The content of the wheel that `pip install liveness` installs."""

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from liveness.version import RELEASE

ROOT = Path(__file__).resolve().parents[3]
DISTRIBUTED = ("liveness",)
NOT_DISTRIBUTED = ("tasks", "tests", "bench")

COMMIT = "5ca1ab1e" * 5
BUILD_WHEEL = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"


def source_files(package: str) -> set[str]:
    """Return the package's files in the working tree, without caches and editor files."""
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.Path:
    """A wheel built from a copy, so that the build leaves nothing in the working tree."""
    source = tmp_path_factory.mktemp("source")
    no_caches: Callable[[str, list[str]], set[str]] = shutil.ignore_patterns("__pycache__")
    for folder in DISTRIBUTED + NOT_DISTRIBUTED:
        if (ROOT / folder).is_dir():
            shutil.copytree(ROOT / folder, source / folder, symlinks=True, ignore=no_caches)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    (source / ".commit").write_text(f"{COMMIT}\n")

    target = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [sys.executable, "-c", BUILD_WHEEL, str(target)],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (path,) = target.glob("*.whl")
    return zipfile.Path(path)


@pytest.fixture(scope="module")
def contents(wheel: zipfile.Path) -> set[str]:
    return set(wheel.root.namelist())


def test_the_folder_tasks_is_installed_as_a_part_of_liveness(contents: set[str]) -> None:
    """A top-level `tasks` would collide with modules of that name in users' programs."""
    files = {f"liveness/{name}" for name in source_files("tasks")}
    assert files
    assert files <= contents


def test_the_wheel_contains_generated_code_with_its_types(contents: set[str]) -> None:
    assert {"liveness/v1/worker_pb2.py", "liveness/v1/worker_pb2.pyi", "liveness/py.typed"} <= contents


@pytest.mark.parametrize("package", DISTRIBUTED)
def test_the_wheel_contains_every_file_of_each_package(contents: set[str], package: str) -> None:
    assert source_files(package) - contents == set()


def test_the_wheel_contains_nothing_else(contents: set[str]) -> None:
    tops = {name.split("/")[0] for name in contents}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(DISTRIBUTED)


def test_the_wheel_installs_the_command(wheel: zipfile.Path) -> None:
    (metadata,) = (entry for entry in wheel.iterdir() if entry.name.endswith(".dist-info"))
    assert "liveness = liveness.cli:main" in (metadata / "entry_points.txt").read_text()


def test_a_wheel_between_releases_names_its_commit(wheel: zipfile.Path) -> None:
    (metadata,) = (entry for entry in wheel.iterdir() if entry.name.endswith(".dist-info"))
    [version] = [
        line for line in (metadata / "METADATA").read_text().splitlines() if line.startswith("Version: ")
    ]
    assert version == f"Version: {RELEASE}" + ("+g5ca1ab1e5c" if ".dev" in RELEASE else "")
