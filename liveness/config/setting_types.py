"""Types of settings: how a value is parsed, what an error message says was expected, and how the value is displayed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from liveness.config.formats import display_value, split_list

_BOOLS = dict.fromkeys(("true", "1", "yes", "on"), True) | dict.fromkeys(("false", "0", "no", "off"), False)


class SettingsError(Exception):
    """A setting is invalid. The message is one sentence for the person who set it."""


@dataclass(frozen=True, slots=True)
class SettingType:
    parse: Callable[..., Any]
    """Returns None for an invalid value. `text`: true for flags and variables, where "64" is a number; in a TOML file it
    is not."""
    expected: str
    display: Callable[[object], str] = display_value
    """The value for people, without secrets."""


def string_setting(
    is_valid: Callable[[str], bool], expected: str, display: Callable[[object], str] = display_value
) -> SettingType:
    def parse(value: object, *, text: bool) -> str | None:
        return value if isinstance(value, str) and is_valid(value) else None

    return SettingType(parse, expected, display)


def list_setting(
    is_valid: Callable[[str], bool],
    expected: str,
    *,
    may_be_empty: bool = False,
    display: Callable[[object], str] = display_value,
) -> SettingType:
    """A list of distinct texts, or one text with commas between them."""

    def parse(value: object, *, text: bool) -> tuple[str, ...] | None:
        if isinstance(value, str):
            value = split_list(value) if value.strip() else []
        if not isinstance(value, list | tuple) or not (value or may_be_empty):
            return None
        if not all(isinstance(part, str) and is_valid(part) for part in value):
            return None
        return tuple(dict.fromkeys(value))

    return SettingType(parse, expected, display)


def choice_setting(*choices: str) -> SettingType:
    return string_setting(choices.__contains__, f"one of {', '.join(choices)}")


def bool_setting() -> SettingType:
    def parse(value: object, *, text: bool) -> bool | None:
        if text and isinstance(value, str):
            return _BOOLS.get(value.lower())
        return value if isinstance(value, bool) else None

    return SettingType(parse, "true or false")


def int_setting(low: int, high: int) -> SettingType:
    def parse(value: object, *, text: bool) -> int | None:
        if text and isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):  # True is an int in Python
            return None
        return value if low <= value <= high else None

    return SettingType(parse, f"a whole number from {low} to {high}")


def float_setting(low: float, high: float, *, above_low: bool = False) -> SettingType:
    def parse(value: object, *, text: bool) -> float | None:
        if text and isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,18})?", value):
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if low <= value <= high and not (above_low and value == low) else None

    bounds = f"above {low:.12g} and at most {high:.12g}" if above_low else f"from {low:.12g} to {high:.12g}"
    return SettingType(parse, f"a number {bounds}")
