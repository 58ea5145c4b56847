"""docs/supervisor.md has every setting with its default, and every change of status."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import pytest

from liveness.domain.component import LEGAL_CHANGES, ComponentStatus
from liveness.supervisor.settings import GroupSettings
from liveness.supervisor.settings_file import (
    CHECK_KEYS,
    GROUP_KEYS,
    OUTPUT_KEYS,
    RESTART_KEYS,
    TABLES,
    parse_supervisor_settings,
)

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "supervisor.md").read_text(encoding="utf-8")
NONE = "–"
KEYS = {
    "": GROUP_KEYS,
    "restart": RESTART_KEYS,
    "exit_codes": ["0"],
    "readiness": CHECK_KEYS,
    "output": OUTPUT_KEYS,
}


def sections() -> dict[str, str]:
    """By the first table that the heading names."""
    parts = re.split(r"^### `\[group\.NAME\.?(\w*)\]`.*$", PAGE, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def documented(table: str) -> Mapping[str, str]:
    """The keys of the table with their defaults, as TOML; without a default, NONE."""
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|", sections()[table], re.MULTILINE)
    return {key: default.strip("`") for key, default in rows}


def group(text: str) -> GroupSettings:
    [found] = parse_supervisor_settings(f'[group.g]\ncommand = "x"\n{text}', "workers.toml").groups
    return found


def test_every_table_has_its_section() -> None:
    named = set(
        re.findall(r"`\[group\.NAME\.(\w+)\]`", "\n".join(re.findall("^### .*$", PAGE, re.MULTILINE)))
    )
    assert named == set(TABLES)
    assert sections().keys() == KEYS.keys()


@pytest.mark.parametrize("table", KEYS)
def test_every_key_is_documented(table: str) -> None:
    assert list(documented(table)) == list(KEYS[table])


@pytest.mark.parametrize(
    ("table", "key", "default"),
    [
        (table, key, default)
        for table in KEYS
        for key, default in documented(table).items()
        if default != NONE
    ],
)
def test_a_documented_default_is_the_default(table: str, key: str, default: str) -> None:
    needed = 'tcp = "a:1"\n' if table == "readiness" else ""
    head = f"[group.g.{table}]\n{needed}" if table else ""
    assert group(f"{head}{key} = {default}") == group(head)


def test_only_what_has_no_default_is_documented_without() -> None:
    plain = group("")
    assert plain.task_queue == "g"
    without = {key for key, default in documented("").items() if default == NONE}
    assert without - {"command", "task_queue"} == {
        key
        for key in GROUP_KEYS
        if key not in ("build_id", "command") and getattr(plain, key, 1) in (None, "")
    }


def test_every_change_of_status_is_documented() -> None:
    [table] = re.findall(r"^\| from \| to \| when \|\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    changes = set()
    for row in table.splitlines():
        before, after, _ = (cell.strip() for cell in row.strip("|").split("|"))
        changes |= set(product(before.split(", "), after.split(", ")))
    names = {None: NONE} | {status: status.name.lower() for status in ComponentStatus}
    assert changes == {
        (names[before], names[after]) for before, allowed in LEGAL_CHANGES.items() for after in allowed
    }
