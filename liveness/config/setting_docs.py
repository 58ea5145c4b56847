"""What each setting of a server is for, for help and documentation: read from the source of `Settings`, where it is written once."""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise
from typing import NamedTuple

import msgspec

from liveness.config import settings
from liveness.config.settings import SETTING_TYPES, Settings, variable_name


class SettingDoc(NamedTuple):
    name: str
    variable: str
    default: str
    """As it is displayed; empty if there is none."""
    text: str
    """Empty if the name says it."""


def setting_docs() -> list[SettingDoc]:
    """In the order in which `Settings` declares them."""
    texts = _texts()
    return [
        SettingDoc(
            field.name,
            variable_name(field.name),
            SETTING_TYPES[field.name].display(field.default) if field.default != "" else "",
            texts.get(field.name, ""),
        )
        for field in msgspec.structs.fields(Settings)
    ]


def _texts() -> dict[str, str]:
    """The string behind each field."""
    tree = ast.parse(inspect.getsource(settings))
    body = next(
        node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == Settings.__name__
    )
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
