"""Kinds of settings: what a value may be, what is said about it, and how much of it people may see."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SQLITE = "sqlite:///"


def without_password(url: str) -> str:
    """Also of a URL that is not well formed, since it is shown in the message that says so."""
    if url.startswith(SQLITE):
        return url
    return re.sub(r"(password=)[^&]*", r"\1***", re.sub(r":(?!//).*@", ":***@", url))


def without_credentials(url: str) -> str:
    """Of a broker, where a user name alone may be a token."""
    return re.sub(r"(?s)^([A-Za-z]*://)?.*@", r"\1***@", url)


def display_urls(value: object) -> str:
    """Of brokers, as a list or with commas between them, well formed or not."""
    urls = value.split(",") if isinstance(value, str) else value
    if not isinstance(urls, list | tuple):
        return display_value(value)
    return ",".join(without_credentials(str(url).strip()) for url in urls)


def is_broker_url(url: str) -> bool:
    """Of NATS. A name and a password may hold anything that is escaped."""
    match = re.fullmatch(
        r"(?:nats|tls)://(?:[^\s/?#@,]+@)?(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?/?", url
    )
    return match is not None and (match[1] is None or 0 < int(match[1]) <= 65_535)


def patterns_overlap(one: str, other: str) -> bool:
    """Whether two patterns NAMESPACE/TASK_QUEUE choose a task queue together."""
    pairs = zip(one.partition("/")[::2], other.partition("/")[::2], strict=True)
    return all(a == b or "*" in (a, b) for a, b in pairs)


def display_value(value: object) -> str:
    return repr(without_password(value)) if isinstance(value, str) else str(value)


@dataclass(frozen=True, slots=True)
class SettingType:
    """What a setting may be. `parse` answers None for what it may not be; `text` tells that the value was written
    where everything is text, so that "64" is a number there, but not in a TOML file."""

    parse: Callable[..., Any]
    expected: str
    display: Callable[[object], str] = display_value
    """The value as people may see it."""


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
    """Of texts, each once; also as one text, with commas between them."""

    def parse(value: object, *, text: bool) -> tuple[str, ...] | None:
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",")] if value.strip() else []
        if not isinstance(value, list | tuple) or not (value or may_be_empty):
            return None
        if not all(isinstance(part, str) and is_valid(part) for part in value):
            return None
        return tuple(dict.fromkeys(value))

    return SettingType(parse, expected, display)


def choice_setting(*choices: str) -> SettingType:
    return string_setting(choices.__contains__, f"one of {', '.join(choices)}")


def bool_setting() -> SettingType:
    words = {
        "true": True,
        "1": True,
        "yes": True,
        "on": True,
        "false": False,
        "0": False,
        "no": False,
        "off": False,
    }

    def parse(value: object, *, text: bool) -> bool | None:
        if text and isinstance(value, str):
            return words.get(value.lower())
        return value if isinstance(value, bool) else None

    return SettingType(parse, "true or false")


def int_setting(low: int, high: int) -> SettingType:
    def parse(value: object, *, text: bool) -> int | None:
        if text and isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value):
            value = int(value)
        # A bool is an int to Python, but not to people.
        return (
            value if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high else None
        )

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
