"""Rules for the structure of the code. The tests read the source and import nothing of it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[3]

# The parts that each part may import: `domain ← store ← {expiry, diagnostics} ← engine ← dispatch ← tasks ← integrations`,
# all below `app`; `sdk → v1, client_credentials, clock, templated_error, rpc_details, network_addresses, version`. A new part must be added here.
BELOW: dict[str, set[str]] = {
    part: {f"liveness.{name}" for name in below.split()}
    for part, below in {
        "liveness": "sdk",
        "liveness.v1": "",
        "liveness.background": "clock",
        "liveness.clock": "",
        "liveness.config": "",
        "liveness.templated_error": "",
        "liveness.version": "",
        "liveness.rpc_details": "",
        "liveness.network_addresses": "",
        "liveness.client_credentials": "network_addresses",
        "liveness.security": "background clock config domain store templated_error v1",
        "liveness.domain": "templated_error",
        "liveness.rpc": "domain rpc_details version",
        "liveness.store": "domain templated_error",
        "liveness.expiry": "domain clock",
        "liveness.diagnostics": "domain store clock",
        "liveness.engine": "domain store expiry diagnostics background clock",
        "liveness.dispatch": "domain engine background clock",
        "liveness.tasks": "domain store expiry engine dispatch background clock",
        "liveness.telemetry": "domain store engine security clock version",
        "liveness.integrations": "domain store engine tasks background clock templated_error version",
        "liveness.routing": "domain rpc rpc_details security v1 background clock",
        "liveness.cluster": "domain store expiry engine routing v1 background clock",
        "liveness.server": "domain store expiry engine dispatch cluster routing rpc rpc_details network_addresses security telemetry config v1 background clock version",
        "liveness.app": "background clock cluster config dispatch engine integrations network_addresses routing security server store tasks telemetry rpc v1 version",
        "liveness.frontend": "background clock cluster config domain routing rpc security server store telemetry v1 version",
        "liveness.http": "domain rpc rpc_details v1 background clock version",
        "liveness.dashboard": "",
        "liveness.sdk": "v1 client_credentials clock templated_error rpc_details network_addresses version",
        "liveness.bridges": "sdk v1 client_credentials background clock telemetry",
        "liveness.demo": "sdk v1 clock",
        "liveness.testing": "app clock config domain",
        "liveness.cli": "app bridges client_credentials clock config demo domain engine frontend http rpc rpc_details sdk security store telemetry v1 version",
        "liveness.__main__": "cli",
        # Public names of modules that lie in other folders.
        "liveness.settings": "config",
        "liveness.fencing": "config integrations",
        "liveness.relays": "integrations",
        "liveness.webhooks": "integrations",
    }.items()
}

OWN = {"liveness", "tests", "bench"}
LINK_TO_TASKS = ROOT / "liveness" / "tasks"
NAMES_THAT_SAY_NOTHING = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "service"}


class Source(NamedTuple):
    path: str
    module: str
    tree: ast.Module
    lines: int


@cache
def sources() -> tuple[Source, ...]:
    """Return every hand-written file of the product."""
    return tuple(
        read(path)
        for package in ("liveness", "tasks")
        for path in sorted((ROOT / package).rglob("*.py"))
        if not path.is_relative_to(LINK_TO_TASKS)
    )


def read(path: Path) -> Source:
    relative = path.relative_to(ROOT)
    parts = relative.with_suffix("").parts
    if parts[0] == "tasks":
        parts = ("liveness", *parts)
    text = path.read_text(encoding="utf-8")
    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return Source(relative.as_posix(), module, ast.parse(text), text.count("\n"))


def written() -> list[Source]:
    return [source for source in sources() if not source.path.startswith("liveness/v1/")]


def part_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def imports(tree: ast.Module) -> Iterator[str]:
    """Return every module that a file imports, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where things come from"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_parts(source: Source) -> set[str]:
    known = {part_of(other.module) for other in sources()}
    own = {name for name in imports(source.tree) if name.split(".")[0] in OWN}
    return ({part_of(name) for name in own} & known) | {
        name for name in own if name.split(".")[0] in ("tests", "bench")
    }


def names_used(tree: ast.Module) -> set[str]:
    """Return dotted names as written, with their imported names: `from time import time` counts as time.time."""
    origins: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            origins |= {
                alias.asname or alias.name.split(".")[0]: (alias.asname and alias.name)
                or alias.name.split(".")[0]
                for alias in node.names
            }
        elif isinstance(node, ast.ImportFrom):
            origins |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    used = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            head, *rest = ast.unparse(node).split(".")
            used.add(".".join([origins.get(head, head), *rest]))
    return used


BY_PATH = {source.path: source for source in written()}


@pytest.mark.parametrize("path", BY_PATH)
def test_dependencies_point_one_way(path: str) -> None:
    source = BY_PATH[path]
    part = part_of(source.module)
    assert part in BELOW, f"give {part} its place in this test"
    assert imported_parts(source) - {part, "liveness"} <= BELOW[part]


def test_the_allowed_dependencies_have_no_cycle() -> None:
    remaining = dict(BELOW)
    while remaining:
        lowest = {part for part, below in remaining.items() if not below & remaining.keys()}
        assert lowest, f"these import each other: {sorted(remaining)}"
        remaining = {part: below for part, below in remaining.items() if part not in lowest}


@pytest.mark.parametrize("path", [path for path in BY_PATH if path.startswith("liveness/domain/")])
def test_the_domain_imports_only_the_standard_library(path: str) -> None:
    others = {name.split(".")[0] for name in imports(BY_PATH[path].tree)} - {"liveness"}
    assert others <= sys.stdlib_module_names


READERS_OF_TIME = {
    "time.time",
    "time.time_ns",
    "time.monotonic",
    "time.monotonic_ns",
    "time.perf_counter",
    "time.perf_counter_ns",
    "time.sleep",
    "time.localtime",
    "time.gmtime",
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "datetime.datetime.today",
    "datetime.date.today",
}


@pytest.mark.parametrize("path", [path for path in BY_PATH if path != "liveness/clock.py"])
def test_only_the_clock_reads_time(path: str) -> None:
    used = names_used(BY_PATH[path].tree)
    assert used & READERS_OF_TIME == set()
    assert not [
        name
        for name in used
        if name.endswith(("loop.time", "get_running_loop().time", "get_event_loop().time"))
    ]


@pytest.mark.parametrize("path", [path for path in BY_PATH if path != "liveness/clock.py"])
def test_only_the_clock_sleeps(path: str) -> None:
    """A sleep of zero seconds is allowed: it only lets other tasks run."""
    for node in ast.walk(BY_PATH[path].tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "asyncio.sleep":
            assert ast.unparse(node.args[0]) == "0", f"line {node.lineno}"


@pytest.mark.parametrize("path", [path for path in BY_PATH if path != "tasks/maintenance.py"])
def test_only_maintenance_uses_the_scheduler(path: str) -> None:
    assert not [name for name in imports(BY_PATH[path].tree) if name.split(".")[0] == "apscheduler"]


@pytest.mark.parametrize("path", [path for path in BY_PATH if path != "liveness/config/settings.py"])
def test_only_settings_read_the_environment(path: str) -> None:
    """The command line passes the environment on as a whole. Programs that use the SDK have no settings, so it finds its
    credentials in the environment by itself."""
    used = names_used(BY_PATH[path].tree)
    assert "os.getenv" not in used
    if not path.startswith(("liveness/cli/", "liveness/client_credentials.py")):
        assert "os.environ" not in used
    for node in ast.walk(BY_PATH[path].tree):
        if isinstance(node, ast.Subscript):
            assert ast.unparse(node.value) != "os.environ", f"line {node.lineno}"
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "os.environ":
            assert node.attr == "setdefault", f"line {node.lineno}"


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in BY_PATH
        if not path.startswith(("liveness/store/", "liveness/cli/", "liveness/integrations/fencing.py"))
    ],
)
def test_only_the_store_uses_sql(path: str) -> None:
    """And the command line, whose doctor examines databases that no store can open, and the guard of users' data."""
    libraries = {name.split(".")[0] for name in imports(BY_PATH[path].tree)}
    assert libraries & {"sqlalchemy", "alembic", "asyncpg", "sqlite3"} == set()


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in BY_PATH
        if path.startswith(
            ("liveness/store/", "liveness/engine/", "liveness/expiry/", "liveness/diagnostics/")
        )
    ],
)
def test_store_and_engine_do_not_import_the_wire_format(path: str) -> None:
    libraries = {name.split(".")[0] for name in imports(BY_PATH[path].tree)}
    assert libraries & {"grpc", "google"} == set()


@pytest.mark.parametrize("path", BY_PATH)
def test_files_are_named_after_ideas(path: str) -> None:
    assert not NAMES_THAT_SAY_NOTHING & set(Path(path).with_suffix("").parts)


@pytest.mark.parametrize("path", [path for path in BY_PATH if Path(path).name != "__main__.py"])
def test_every_module_has_a_docstring(path: str) -> None:
    source = BY_PATH[path]
    assert ast.get_docstring(source.tree) or not source.tree.body


def test_the_rules_find_known_imports_and_names() -> None:
    """A parser that finds nothing would pass every rule."""
    offender = ast.parse(
        "import time as clock, datetime\n"
        "from time import monotonic\n"
        "import liveness.store.sql\n"
        "def late():\n"
        "    from liveness import engine\n"
        "    return clock.time() + monotonic(), datetime.datetime.now()\n"
    )
    assert {"time.time", "time.monotonic", "datetime.datetime.now"} <= names_used(offender)
    assert {"liveness.store.sql", "liveness.engine"} <= set(imports(offender))
    assert imported_parts(Source("", "", offender, 1)) >= {"liveness.store", "liveness.engine"}
    assert "time.monotonic_ns" in names_used(BY_PATH["liveness/clock.py"].tree)
