"""The setting `door`: what it accepts, what it refuses with which sentence, and what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from liveness.config.doors import PgaiDoor, noetl_namespace, pgai_doors
from liveness.config.settings import Settings, SettingsError, load_pgai_dsn, load_settings

URL = "postgresql://liveness@db.example/app"


def test_a_door_names_a_database_and_perhaps_a_namespace() -> None:
    doors = load_settings({"door": (f"pgai={URL}", "pgai:billing=service=billing")}, {}).door
    assert pgai_doors(doors) == (PgaiDoor("pgai", URL), PgaiDoor("billing", "service=billing"))


def test_a_variable_separates_doors_with_spaces_because_urls_may_have_commas() -> None:
    several = f"pgai={URL}?host=a,b  pgai:billing={URL}"
    assert load_settings({}, {"LIVENESS_DOOR": several}).door == (
        f"pgai={URL}?host=a,b",
        f"pgai:billing={URL}",
    )


@pytest.mark.parametrize(
    "door",
    [
        "pgai",
        "pgai=",
        "pgai=mysql://db/app",
        "pgai=postgresql://",
        "pgai:=" + URL,
        "noel=x",
        "pgai=service=",
        "pgai=a\nb",
        "noetl:",
        "noetl=x",
        "noetl:a\nb",
    ],
)
def test_what_is_no_door_is_refused_in_one_sentence(door: str, tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError, match=r"^flag --door is .*, but must be noetl, .*pgai=postgresql://.*\.$"
    ):
        load_settings({"door": (door,)}, {})


def test_two_databases_need_two_namespaces() -> None:
    with pytest.raises(
        SettingsError, match="door has two databases for namespace pgai; write pgai:NAMESPACE=URL"
    ):
        Settings(door=(f"pgai={URL}", "pgai=service=other"))


def test_the_namespace_must_be_served() -> None:
    with pytest.raises(
        SettingsError, match="namespace pgai, but it is not among the namespaces that are served: orders"
    ):
        Settings(door=(f"pgai={URL}",), namespaces=("orders",))


def test_a_password_is_not_shown() -> None:
    door = "pgai=postgresql://liveness:hunter2@db.example/app"
    assert "hunter2" not in repr(Settings(door=(door,)))
    with pytest.raises(SettingsError) as raised:
        load_settings({"door": (door + "\n",)}, {})
    assert "hunter2" not in str(raised.value)


def test_the_database_of_the_command_comes_from_its_flag_or_variable() -> None:
    assert load_pgai_dsn(None, {"LIVENESS_PGAI_DSN": "service=app"}) == "service=app"
    assert load_pgai_dsn(URL, {"LIVENESS_PGAI_DSN": "service=app"}) == URL
    for dsn, environ in ((None, {}), ("host=db password=hunter2", {})):
        with pytest.raises(SettingsError) as raised:
            load_pgai_dsn(dsn, environ)
        assert "postgresql://USER@HOST:PORT/DATABASE" in str(raised.value)
        assert "hunter2" not in str(raised.value)


def test_the_door_for_noetl_has_one_namespace_and_needs_http() -> None:
    assert noetl_namespace(Settings(door=("noetl",)).door) == "noetl"
    assert noetl_namespace(Settings(door=("noetl:etl",)).door) == "etl"
    assert noetl_namespace(Settings().door) is None
    with pytest.raises(SettingsError, match="needs HTTP; set http to HOST:PORT"):
        Settings(door=("noetl",), http="off")
    with pytest.raises(SettingsError, match="lead to one namespace; name one"):
        Settings(door=("noetl", "noetl:etl"))
    with pytest.raises(SettingsError, match="door has namespace noetl, but it is not among"):
        Settings(door=("noetl",), namespaces=("orders",))
    with pytest.raises(SettingsError, match="that door is closed; set door to noetl"):
        Settings(door_noetl_replicas="refuse")
