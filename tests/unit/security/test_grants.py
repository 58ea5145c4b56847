"""Grants: how they are written, and what they cover."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.security.grants import GRANTABLE_ROLES, Grant, Role, parse_grant, parse_grants
from liveness.security.principal import Principal, decode_principal

names = st.text(min_size=1, max_size=20).filter(lambda text: "*" not in text and text.isprintable())


@pytest.mark.parametrize(
    ("text", "grant"),
    [
        ("worker:shop", Grant(Role.WORKER, "shop")),
        ("admin:*", Grant(Role.ADMIN, "*")),
        ("worker:shop:render-", Grant(Role.WORKER, "shop", "render-")),
        ("worker:shop:a:b", Grant(Role.WORKER, "shop", "a:b")),
        ("reader:x%3Ay", Grant(Role.READER, "x:y")),
    ],
)
def test_a_grant_is_written_as_role_namespace_and_prefix(text: str, grant: Grant) -> None:
    assert parse_grant(text) == grant
    assert str(grant) == text


@pytest.mark.parametrize(
    "text",
    ["", "worker", "worker:", ":shop", "node:*", "root:shop", "WORKER:shop", "worker:shop:", "worker:sh*p",
     "worker:%2A", "worker:a b", "worker:shop\n", "worker:" + "x" * 600],
)  # fmt: skip
def test_anything_else_is_no_grant(text: str) -> None:
    assert parse_grant(text) is None


@given(st.builds(Grant, st.sampled_from(GRANTABLE_ROLES), names, st.just("") | names))
def test_a_grant_survives_being_written_and_read(grant: Grant) -> None:
    assert parse_grants(f"{grant} {grant}") == (grant, grant)


def test_what_a_newer_version_granted_is_skipped() -> None:
    assert parse_grants("auditor:shop reader:shop") == (Grant(Role.READER, "shop"),)


def principal(*grants: str) -> Principal:
    return Principal("p", [grant for text in grants if (grant := parse_grant(text))])


@pytest.mark.parametrize(
    ("grants", "role", "namespace", "has"),
    [
        (["operator:shop"], Role.READER, "shop", True),
        (["operator:shop"], Role.WORKER, "shop", False),
        (["operator:shop"], Role.PRODUCER, "shop", False),
        (["admin:shop"], Role.WORKER, "shop", True),
        (["admin:shop"], Role.NODE, "shop", False),
        (["admin:shop"], Role.READER, "", False),
        (["admin:*"], Role.READER, "", True),
        (["reader:*"], Role.READER, "any", True),
        (["worker:shop:a-"], Role.WORKER, "shop", False),
        (["reader:shop"], Role.READER, "shop2", False),
        ([], Role.READER, "shop", False),
    ],
)
def test_a_role_holds_where_it_was_granted(grants: list[str], role: Role, namespace: str, has: bool) -> None:
    for _ in range(2):  # the second answer is remembered
        assert principal(*grants).has(role, namespace) is has


def test_what_a_principal_may_do_is_remembered_for_a_bounded_number_of_namespaces() -> None:
    someone = principal("reader:shop")
    for number in range(5_000):
        assert not someone.has(Role.READER, f"n{number}")
    assert len(someone._memo) <= 1_000
    assert someone.has(Role.READER, "shop")


def test_a_principal_survives_the_way_to_another_node() -> None:
    someone = Principal("jwt:größe", principal("worker:x%3Ay:a").grants, "jwt", "id", 7)
    same = decode_principal(someone.encoded().decode())
    assert (same.name, same.grants, same.credential_kind, same.credential_id, same.expires_wall_ms) == (
        "jwt:größe", someone.grants, "jwt", "id", 7,
    )  # fmt: skip


@pytest.mark.parametrize("expires_wall_ms", [-1, 10**400, "soon", None])
def test_a_principal_whose_expiry_is_no_time_is_refused(expires_wall_ms: object) -> None:
    told = {"name": "ann", "grants": "", "kind": "token", "id": "1", "expires_wall_ms": expires_wall_ms}
    with pytest.raises(msgspec.ValidationError):
        decode_principal(json.dumps(told))
