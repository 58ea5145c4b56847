"""One server for all tests of this folder, which use different names; no program outlives its test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.system.examples.programs import Program, server_with_short_leases

Start = Callable[..., Program]


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with server_with_short_leases(tmp_path_factory.mktemp("server")) as address:
        yield address


@pytest.fixture
def start(address: str, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts an example in the test's folder."""
    programs: list[Program] = []

    def start(name: str, *arguments: str) -> Program:
        program = Program(name, *arguments, "--address", address, folder=tmp_path)
        programs.append(program)
        return program

    yield start
    for program in programs:
        program.end()
