"""The setting `door`: the doors that a server opens for clients of other systems, each as NAME or NAME=VALUE."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from liveness.config.durations import parse_ms
from liveness.config.formats import is_name, without_password
from liveness.config.setting_types import SettingsError, SettingType, choice_setting, string_setting

if TYPE_CHECKING:
    from liveness.config.settings import Settings

PGAI = "pgai"
NOETL = "noetl"
NOETL_REPLICAS = ("show", "refuse", "number")
SERVICE = "service="
HINTS_OFF = "off"
HINTS_MS_MIN = 1_000
DSN_RULE = "postgresql://USER@HOST:PORT/DATABASE, or service=NAME of a service file"
_SCHEMES = ("postgresql://", "postgres://")


class PgaiDoor(NamedTuple):
    namespace: str
    dsn: str


def is_dsn(text: str) -> bool:
    """Whether the text can be the URL of a PostgreSQL database, or `service=NAME`."""
    if not text.isprintable():
        return False
    if text.startswith(SERVICE):
        return len(text) > len(SERVICE) and " " not in text
    try:
        return text.startswith(_SCHEMES) and text not in _SCHEMES and urlsplit(text) is not None
    except ValueError:
        return False


def _is_pgai(argument: str) -> bool:
    door = _pgai_door(argument)
    return is_name(door.namespace) and is_dsn(door.dsn)


def _pgai_door(value: str) -> PgaiDoor:
    """`value`: what follows the name of the door, such as =URL or :NAMESPACE=URL."""
    namespace, _, dsn = value.partition("=")
    return PgaiDoor(namespace.removeprefix(":") if namespace else PGAI, dsn)


def _is_noetl(argument: str) -> bool:
    return not argument or (argument.startswith(":") and is_name(argument[1:]))


_KINDS: Mapping[str, Callable[[str], bool]] = {PGAI: _is_pgai, NOETL: _is_noetl}
"""The doors that there are: whether what follows the name is valid."""
EXPECTED = (
    "noetl, noetl:NAMESPACE, pgai=postgresql://USER@HOST/DATABASE, pgai=service=NAME or pgai:NAMESPACE=…, or several; in a "
    "variable with spaces between them"
)


def _is_duration(text: str, ms_min: int) -> bool:
    ms = parse_ms(text)
    return ms is not None and ms >= ms_min


def _is_door(text: str) -> bool:
    name = text.partition("=")[0].partition(":")[0]
    kind = _KINDS.get(name)
    return kind is not None and kind(text.removeprefix(name))


def _parse(value: object, *, text: bool) -> tuple[str, ...] | None:
    # Not by commas: a URL may contain them.
    parts = value.split() if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(
        isinstance(part, str) and _is_door(part) for part in parts
    ):
        return None
    return tuple(dict.fromkeys(parts))


def _display(value: object) -> str:
    parts = value.split() if isinstance(value, str) else value
    if not isinstance(parts, list | tuple):
        return str(value)
    return repr(" ".join(without_password(str(part)) for part in parts))


SETTING_TYPES: Mapping[str, SettingType] = {
    "door": SettingType(_parse, EXPECTED, _display),
    "door_noetl_replicas": choice_setting(*NOETL_REPLICAS),
    "door_pgai_hints": string_setting(
        lambda text: text == HINTS_OFF or _is_duration(text, HINTS_MS_MIN),
        "off, or a duration of at least 1s, like 2s",
    ),
    "door_pgai_restart_allowance": string_setting(lambda text: _is_duration(text, 0), "a duration like 1h"),
}


def pgai_doors(doors: tuple[str, ...]) -> tuple[PgaiDoor, ...]:
    return tuple(_pgai_door(door.removeprefix(PGAI)) for door in doors if door.startswith(PGAI))


def noetl_namespace(doors: tuple[str, ...]) -> str | None:
    """Where clients of NoETL register; None if that door is closed."""
    found = [door.removeprefix(NOETL).removeprefix(":") or NOETL for door in doors if door.startswith(NOETL)]
    return found[0] if found else None


def check(settings: Settings) -> None:
    """Raise `SettingsError` if two databases are followed into one namespace, or into one that is not served, or if a door cannot
    be opened."""
    _check_noetl(settings)
    seen: set[str] = set()
    namespaces = settings.namespaces
    for door in pgai_doors(settings.door):
        if door.namespace in seen:
            raise SettingsError(
                f"door has two databases for namespace {door.namespace}; write pgai:NAMESPACE=URL with a namespace for each."
            )
        if namespaces and door.namespace not in namespaces:
            raise SettingsError(
                f"door has namespace {door.namespace}, but it is not among the namespaces that are served: "
                f"{', '.join(namespaces)}."
            )
        seen.add(door.namespace)


def _check_noetl(settings: Settings) -> None:
    opened = [door for door in settings.door if door.startswith(NOETL)]
    if not opened:
        if settings.door_noetl_replicas != NOETL_REPLICAS[0]:
            raise SettingsError("door_noetl_replicas is set, but that door is closed; set door to noetl.")
        return
    if len(opened) > 1:
        raise SettingsError(
            f"door has {opened[0]} and {opened[1]}, but its paths lead to one namespace; name one."
        )
    if settings.http == "off":
        raise SettingsError("door has noetl, which needs HTTP; set http to HOST:PORT.")
    namespace = noetl_namespace(settings.door)
    if settings.namespaces and namespace not in settings.namespaces:
        raise SettingsError(
            f"door has namespace {namespace}, but it is not among the namespaces that are served: "
            f"{', '.join(settings.namespaces)}."
        )
