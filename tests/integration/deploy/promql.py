"""A partial PromQL parser: metrics, matchers and grouping labels of an expression."""

from __future__ import annotations

import re
from typing import NamedTuple

_STRING = r'"(?:[^"\\]|\\.)*"'
_MATCHER = re.compile(rf"\s*([a-zA-Z_]\w*)\s*(=~|!~|!=|=)\s*({_STRING})\s*,?")
_GROUPING = re.compile(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_SELECTOR = re.compile(rf"(?<![\w.])([a-zA-Z_:][\w:]*)\s*(\{{(?:{_STRING}|[^}}\"])*\}})?")
_WORDS = {
    "and",
    "or",
    "unless",
    "bool",
    "offset",
    "by",
    "on",
    "without",
    "ignoring",
    "group_left",
    "group_right",
}


class Matcher(NamedTuple):
    label: str
    operator: str
    value: str


class Selector(NamedTuple):
    metric: str
    matchers: tuple[Matcher, ...]


class Expression(NamedTuple):
    selectors: tuple[Selector, ...]
    groupings: frozenset[str]


def read(text: str) -> Expression:
    groupings = {
        name.strip() for names in _GROUPING.findall(text) for name in names.split(",") if name.strip()
    }
    rest = re.sub(r"\[[^\]]*\]", "", _GROUPING.sub("", text))  # ranges
    selectors = []
    for found in _SELECTOR.finditer(rest):
        name, braces = found.groups()
        is_function = rest[found.end() :].lstrip().startswith("(") and not braces
        if is_function or name in _WORDS:
            continue
        matchers = tuple(
            Matcher(label, operator, value[1:-1]) for label, operator, value in _MATCHER.findall(braces or "")
        )
        selectors.append(Selector(name, matchers))
    return Expression(tuple(selectors), frozenset(groupings))
