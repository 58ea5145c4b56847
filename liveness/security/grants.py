"""Grants: a role in a namespace, written ROLE:NAMESPACE or ROLE:NAMESPACE:KEY_PREFIX.

Other characters than those of URLs, and a colon in a namespace, are written as in URLs: %3A for a colon.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple
from urllib.parse import quote, unquote

ALL_NAMESPACES = "*"
TEXT_CHARS_MAX = 600


class Role(IntEnum):
    """The numbers are those of `liveness.v1.Role`."""

    WORKER = 1
    PRODUCER = 2
    READER = 3
    OPERATOR = 4
    ADMIN = 5
    NODE = 6
    """A node or a frontend of the cluster. No grant gives it."""


GRANTABLE_ROLES = (Role.WORKER, Role.PRODUCER, Role.READER, Role.OPERATOR, Role.ADMIN)
ROLE_NAMES = ", ".join(role.name.lower() for role in GRANTABLE_ROLES)
EXPECTED = (
    f"ROLE:NAMESPACE or ROLE:NAMESPACE:KEY_PREFIX, where ROLE is {ROLE_NAMES}, and NAMESPACE may be * for all"
)

_INCLUDED: dict[Role, frozenset[Role]] = {
    Role.WORKER: frozenset({Role.WORKER}),
    Role.PRODUCER: frozenset({Role.PRODUCER}),
    Role.READER: frozenset({Role.READER}),
    Role.OPERATOR: frozenset({Role.OPERATOR, Role.READER}),
    Role.ADMIN: frozenset(GRANTABLE_ROLES),
    Role.NODE: frozenset(),
}


class Grant(NamedTuple):
    role: Role
    namespace: str
    """`*` for all namespaces."""
    key_prefix: str = ""
    """Only worker keys that begin with it; empty for all, and for calls that are about no single worker."""

    def __str__(self) -> str:
        parts = [self.role.name.lower(), quote(self.namespace, safe="/*")]
        return ":".join([*parts, quote(self.key_prefix, safe="/:")] if self.key_prefix else parts)

    def includes(self, role: Role) -> bool:
        return role in _INCLUDED[self.role]

    def covers(self, namespace: str) -> bool:
        """`namespace`: empty for all, which only a grant for all covers."""
        return self.namespace in (ALL_NAMESPACES, namespace)


def parse_grant(text: str) -> Grant | None:
    """None if the text is not a grant."""
    role_name, _, rest = text.partition(":")
    namespace, colon, key_prefix = rest.partition(":")
    role = role_named(role_name)
    if role is None or not namespace or (colon and not key_prefix):
        return None
    if len(text) > TEXT_CHARS_MAX or not text.isprintable() or any(char.isspace() for char in text):
        return None
    if namespace == ALL_NAMESPACES:
        return Grant(role, namespace, unquote(key_prefix))
    if "*" in (namespace := unquote(namespace)):
        return None
    return Grant(role, namespace, unquote(key_prefix))


def role_named(name: str) -> Role | None:
    return next((role for role in GRANTABLE_ROLES if role.name.lower() == name), None)


def parse_grants(text: str) -> tuple[Grant, ...]:
    """Read grants with spaces between them, as they are stored. What a newer version wrote and this one does not know
    grants nothing."""
    return tuple(grant for part in text.split() if (grant := parse_grant(part)) is not None)
