"""Rules for the structure of the code. The tests read the source and import nothing of it. A failure lists each file that
breaks the rule, with its offences."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from tests.unit.architecture.source_files import Source, parse_source, sources

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
        "liveness.slices": "",
        "liveness.network_addresses": "",
        "liveness.client_credentials": "network_addresses",
        "liveness.security": "background clock config domain store templated_error v1",
        "liveness.domain": "templated_error",
        "liveness.rpc": "domain rpc_details version",
        "liveness.store": "domain templated_error",
        "liveness.expiry": "domain clock",
        "liveness.tuning": "domain store expiry clock",
        "liveness.diagnostics": "domain store clock",
        "liveness.engine": "domain store expiry diagnostics background clock",
        "liveness.dispatch": "domain engine background clock slices",
        "liveness.tasks": "domain store expiry engine dispatch background clock slices",
        "liveness.telemetry": "domain store engine security clock slices version",
        "liveness.integrations": "domain store engine tasks background clock templated_error version",
        "liveness.routing": "domain rpc rpc_details security v1 background clock",
        "liveness.cluster": "domain store expiry engine routing v1 background clock",
        "liveness.server": "domain store expiry engine dispatch cluster routing rpc rpc_details network_addresses security telemetry config tuning v1 background clock slices version",
        "liveness.app": "background clock cluster config dispatch engine integrations network_addresses routing security server store tasks telemetry rpc v1 version",
        "liveness.frontend": "background clock cluster config domain routing rpc security server store telemetry v1 version",
        "liveness.http": "domain rpc rpc_details v1 background clock version",
        "liveness.dashboard": "",
        "liveness.sdk": "v1 client_credentials clock templated_error rpc_details network_addresses version",
        "liveness.bridges": "sdk v1 client_credentials background clock telemetry",
        "liveness.doors": "sdk v1 client_credentials background clock config domain http slices templated_error",
        "liveness.supervisor": "sdk v1 client_credentials background clock config domain templated_error version",
        "liveness.contrib": "sdk",
        "liveness.demo": "sdk v1 clock",
        "liveness.testing": "app clock config domain",
        "liveness.cli": "app bridges client_credentials clock config demo domain doors engine frontend http rpc rpc_details sdk security store supervisor telemetry v1 version",
        "liveness.__main__": "cli",
        # Public names of modules that lie in other folders.
        "liveness.settings": "config",
        "liveness.fencing": "config integrations",
        "liveness.relays": "integrations",
        "liveness.webhooks": "integrations",
    }.items()
}

OWN = {"liveness", "tests", "bench"}
NAMES_THAT_SAY_NOTHING = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "service"}


def part_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


@cache
def imports(source: Source) -> frozenset[str]:
    """Return every module that a file imports, also inside functions."""
    return frozenset(_imports(source))


def _imports(source: Source) -> Iterator[str]:
    for node in source.nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source.path}: relative imports hide where things come from"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_libraries(source: Source) -> set[str]:
    return {name.split(".")[0] for name in imports(source)}


@cache
def known_parts() -> frozenset[str]:
    return frozenset({part_of(source.module) for source in sources()} | {"liveness.v1"})


def imported_parts(source: Source) -> set[str]:
    own = {name for name in imports(source) if name.split(".")[0] in OWN}
    return ({part_of(name) for name in own} & known_parts()) | {
        name for name in own if name.split(".")[0] in ("tests", "bench")
    }


@cache
def names_used(source: Source) -> frozenset[str]:
    """Return dotted names as written, with their imported names: `from time import time` counts as time.time."""
    origins: dict[str, str] = {}
    for node in source.nodes:
        if isinstance(node, ast.Import):
            origins |= {
                alias.asname or alias.name.split(".")[0]: (alias.asname and alias.name)
                or alias.name.split(".")[0]
                for alias in node.names
            }
        elif isinstance(node, ast.ImportFrom):
            origins |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    used = set()
    for node in source.nodes:
        if isinstance(node, ast.Name | ast.Attribute):
            head, *rest = as_written(node).split(".")
            used.add(".".join([origins.get(head, head), *rest]))
    return frozenset(used)


def as_written(node: ast.expr) -> str:
    """Like `ast.unparse`, which is slow, for the dotted names that almost all nodes are."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
        return f"{as_written(node.value)}.{node.attr}"
    return ast.unparse(node)


def offences(
    rule: Callable[[Source], set[str]], *, allowed: tuple[str, ...] = (), within: tuple[str, ...] = ("",)
) -> dict[str, set[str]]:
    """What `rule` finds in the files below `within` that are not below `allowed`, by path."""
    checked = [
        source
        for source in sources()
        if source.path.startswith(within) and not (allowed and source.path.startswith(allowed))
    ]
    assert checked, f"no file is below {within}"
    return {source.path: found for source in checked if (found := rule(source))}


def test_dependencies_point_one_way() -> None:
    def wrong_way(source: Source) -> set[str]:
        part = part_of(source.module)
        assert part in BELOW, f"give {part} its place in this test"
        return imported_parts(source) - {part, "liveness"} - BELOW[part]

    assert offences(wrong_way) == {}


def test_the_allowed_dependencies_have_no_cycle() -> None:
    remaining = dict(BELOW)
    while remaining:
        lowest = {part for part, below in remaining.items() if not below & remaining.keys()}
        assert lowest, f"these import each other: {sorted(remaining)}"
        remaining = {part: below for part, below in remaining.items() if part not in lowest}


def test_the_domain_imports_only_the_standard_library() -> None:
    def foreign(source: Source) -> set[str]:
        return imported_libraries(source) - {"liveness"} - sys.stdlib_module_names

    assert offences(foreign, within=("liveness/domain/",)) == {}


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


def time_read(source: Source) -> set[str]:
    used = names_used(source)
    by_loop = ("loop.time", "get_running_loop().time", "get_event_loop().time")
    return set(used & READERS_OF_TIME) | {name for name in used if name.endswith(by_loop)}


def test_only_the_clock_reads_time() -> None:
    assert offences(time_read, allowed=("liveness/clock.py",)) == {}


def sleeps(source: Source) -> set[str]:
    """A sleep of zero seconds is allowed: it only lets other tasks run."""
    return {
        f"line {node.lineno}"
        for node in source.nodes
        if isinstance(node, ast.Call)
        and as_written(node.func) == "asyncio.sleep"
        and ast.unparse(node.args[0]) != "0"
    }


def test_only_the_clock_sleeps() -> None:
    assert offences(sleeps, allowed=("liveness/clock.py",)) == {}


def test_only_maintenance_uses_the_scheduler() -> None:
    def scheduler(source: Source) -> set[str]:
        return imported_libraries(source) & {"apscheduler"}

    assert offences(scheduler, allowed=("tasks/maintenance.py",)) == {}


def environment_read(source: Source) -> set[str]:
    """The command line passes the environment on as a whole. Programs that use the SDK have no settings, so it finds the server and its
    credentials in the environment by itself, and what a supervisor tells its child."""
    forbidden = {"os.getenv"}
    if not source.path.startswith(("liveness/cli/", "liveness/client_credentials.py")):
        forbidden.add("os.environ")
    lines = {
        f"line {node.lineno}"
        for node in source.nodes
        if isinstance(node, ast.Subscript | ast.Attribute)
        and as_written(node.value) == "os.environ"
        and not (isinstance(node, ast.Attribute) and node.attr == "setdefault")
    }
    return lines | (names_used(source) & forbidden)


def test_only_settings_read_the_environment() -> None:
    allowed = (
        "liveness/config/settings.py",
        "liveness/sdk/addresses.py",
        "liveness/sdk/component_environment.py",
    )
    assert offences(environment_read, allowed=allowed) == {}


def sql_libraries(source: Source) -> set[str]:
    return imported_libraries(source) & {"sqlalchemy", "alembic", "asyncpg", "sqlite3"}


def test_only_the_store_uses_sql() -> None:
    """And the command line, whose doctor examines databases that no store can open, the guard of users' data, and the door to
    pgai's tables in users' databases."""
    allowed = ("liveness/store/", "liveness/cli/", "liveness/integrations/fencing.py", "liveness/doors/pgai/")
    assert offences(sql_libraries, allowed=allowed) == {}


def test_store_and_engine_do_not_import_the_wire_format() -> None:
    def wire_format(source: Source) -> set[str]:
        return imported_libraries(source) & {"grpc", "google"}

    within = ("liveness/store/", "liveness/engine/", "liveness/expiry/", "liveness/diagnostics/")
    assert offences(wire_format, within=within) == {}


def test_files_are_named_after_ideas() -> None:
    def empty_words(source: Source) -> set[str]:
        return NAMES_THAT_SAY_NOTHING & set(Path(source.path).with_suffix("").parts)

    assert offences(empty_words) == {}


def test_every_module_has_a_docstring() -> None:
    def missing(source: Source) -> set[str]:
        is_described = ast.get_docstring(source.tree) or not source.tree.body
        return set() if is_described or Path(source.path).name == "__main__.py" else {"no docstring"}

    assert offences(missing) == {}


def test_the_rules_find_known_imports_and_names() -> None:
    """A parser that finds nothing would pass every rule."""
    offender = parse_source(
        "",
        "",
        "import time as clock, datetime, os, asyncio\n"
        "from time import monotonic\n"
        "import liveness.store.sql, sqlite3\n"
        "async def late():\n"
        "    from liveness import engine\n"
        "    await asyncio.sleep(0)\n"
        "    await asyncio.sleep(1)\n"
        "    asyncio.get_running_loop().time()\n"
        "    os.environ.setdefault('A', 'b')\n"
        "    os.environ['A']\n"
        "    return clock.time() + monotonic(), datetime.datetime.now()\n",
    )
    assert {"time.time", "time.monotonic", "datetime.datetime.now"} <= names_used(offender)
    assert {"liveness.store.sql", "liveness.engine"} <= imports(offender)
    assert imported_parts(offender) >= {"liveness.store", "liveness.engine"}
    assert time_read(offender) == {
        "time.time",
        "time.monotonic",
        "datetime.datetime.now",
        "asyncio.get_running_loop().time",
    }
    assert sleeps(offender) == {"line 7"}
    assert environment_read(offender) == {"os.environ", "line 10"}
    assert sql_libraries(offender) == {"sqlite3"}
    clock = next(source for source in sources() if source.path == "liveness/clock.py")
    assert "time.monotonic_ns" in names_used(clock)
