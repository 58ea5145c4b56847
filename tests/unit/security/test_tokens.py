"""The form of tokens."""

from __future__ import annotations

import pytest

from liveness.security.audit import plain
from liveness.security.tokens import (
    create_session,
    create_token,
    hash_secret,
    is_principal_name,
    is_secret,
    split_token,
)


def test_a_token_has_a_public_id_and_a_secret_of_which_a_hash_is_kept() -> None:
    token = create_token()
    split = split_token(token.text)
    assert split is not None
    token_id, secret = split
    assert token_id == token.token_id
    assert len(secret) == 43
    assert secret not in token.secret_hash
    assert hash_secret(secret) == token.secret_hash
    assert is_secret(secret, token.secret_hash)
    assert not is_secret(secret[:-1] + "x", create_token().secret_hash)


def test_a_session_names_the_token_that_it_ends_with() -> None:
    parent = create_token()
    session = create_session(parent.token_id)
    split = split_token(session.text)
    assert split is not None
    assert split[0] == session.token_id
    assert session.token_id.startswith(f"{parent.token_id}-")
    assert is_secret(split[1], session.secret_hash)
    assert plain(f"of {session.text}") == "of ***"


def test_no_two_tokens_are_equal() -> None:
    tokens = [create_token() for _ in range(1_000)]
    assert len({token.token_id for token in tokens}) == len({token.text for token in tokens}) == 1_000


@pytest.mark.parametrize(
    "text",
    [
        "",
        "lvt_",
        "lvt_a_b",
        "lvt_aaaaaaaaaaaa",
        "xyz_aaaaaaaaaaaa_" + "A" * 43,
        "lvt_aaaaaaaaaaaa_" + "A" * 44,
        "lvs_aaaaaaaaaaaa_" + "A" * 43,
        "lvt_aaaaaaaaaaaa-aaaaaaaaaaaa_" + "A" * 43,
        "lvs_aaaaaaaaaaaa-aaaaaaaaaaaa-aaaaaaaaaaaa_" + "A" * 43,
    ],
)
def test_anything_else_is_no_token(text: str) -> None:
    assert split_token(text) is None


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        ("ci/build@host", True),
        ("a", True),
        ("", False),
        ("jwt:a", False),
        ("cert:a", False),
        ("a b", False),
        ("ä", False),
        ("a" * 201, False),
        ("-a", False),
    ],
)
def test_names_of_principals(name: str, valid: bool) -> None:
    assert is_principal_name(name) is valid
