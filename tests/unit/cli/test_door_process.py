"""A server refuses a door that it cannot open, before it starts."""

from __future__ import annotations

import os
from typing import Any

import pytest

from liveness.cli.door_process import DoorUnusable, own_follower_settings
from liveness.config.settings import Settings

DOOR = "pgai=postgresql://liveness:hunter2@db.example/app"


@pytest.fixture(autouse=True)
def _no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("LIVENESS_"):
            monkeypatch.delenv(name)


def test_each_door_has_its_settings() -> None:
    (follower,) = own_follower_settings(
        Settings(door=(DOOR,), door_pgai_hints="off", door_pgai_restart_allowance="5m")
    )
    assert follower.namespace == "pgai"
    assert follower.hint_ms == 0
    assert follower.restart_allowance_ms == 300_000
    assert follower.is_alone, "nobody else serves a SQLite database"
    assert "hunter2" not in repr(follower)
    assert own_follower_settings(Settings()) == ()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"auth": "on"}, "needs a token where every call needs a credential; set LIVENESS_TOKEN_FILE"),
        (
            {"tls_cert_file": "a", "tls_key_file": "b"},
            "must check the certificate of its server; set LIVENESS_TLS_CA_FILE",
        ),
    ],
)
def test_a_door_without_the_credentials_it_needs_is_refused(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(DoorUnusable, match=expected):
        own_follower_settings(Settings(door=(DOOR,), **settings))
