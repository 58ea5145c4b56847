"""Where settings come from, and what is said about those that cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from liveness.settings import (
    RULES,
    ClientSettings,
    Settings,
    SettingsError,
    load_client_settings,
    load_settings,
    without_password,
)

DB = (
    "sqlite:///FILE or postgresql://USER:PASSWORD@HOST:PORT/DATABASE, the latter with ?ssl=require if need be"
)
LISTEN = "HOST:PORT, for example 127.0.0.1:7400, 0.0.0.0:7400 or [::1]:7400; port 0 takes any free one"


def toml(folder: Path, text: str) -> Path:
    file = folder / "liveness.toml"
    file.write_text(text)
    return file


def refusal(flags: dict[str, Any], environ: dict[str, str], file: Path | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(flags, environ, file)
    return str(caught.value)


def test_without_any_source_the_defaults_hold() -> None:
    assert load_settings({}, {}) == Settings()


def test_every_setting_has_a_rule_and_its_default_keeps_it() -> None:
    assert set(RULES) == set(Settings.__struct_fields__)


def test_flag_over_variable_over_file_over_default(tmp_path: Path) -> None:
    file = toml(tmp_path, 'shards = 3\nlisten = "127.0.0.1:3"\nlog_level = "error"\n')
    settings = load_settings(
        {"shards": "1", "listen": None}, {"LIVENESS_SHARDS": "2", "LIVENESS_LISTEN": "127.0.0.1:2"}, file
    )
    assert (settings.shards, settings.listen, settings.log_level, settings.log_format) == (
        1,
        "127.0.0.1:2",
        "error",
        "auto",
    )


def test_a_flag_that_turns_something_off_counts_as_given() -> None:
    assert load_settings({"reflection": False}, {"LIVENESS_REFLECTION": "true"}).reflection is False


def test_a_variable_names_the_file_and_a_flag_names_another(tmp_path: Path) -> None:
    by_variable, by_flag = tmp_path / "variable.toml", tmp_path / "flag.toml"
    by_variable.write_text("shards = 5")
    by_flag.write_text("shards = 6")
    environ = {"LIVENESS_CONFIG": str(by_variable)}
    assert load_settings({}, environ).shards == 5
    assert load_settings({}, environ, by_flag).shards == 6


def test_every_setting_can_come_from_a_file(tmp_path: Path) -> None:
    file = toml(
        tmp_path,
        """
        db = "postgresql://someone@db.example/liveness?ssl=require"
        listen = "[::1]:0"
        shards = 4096
        reflection = false
        log_level = "debug"
        log_format = "json"
        commit_interval_ms = 0
        takeover_grace_ms = 0
        checkpoint_interval_s = 0.5
        retention_interval_s = 60
        task_retention_s = 0
        task_attempts_max = 1
        shutdown_timeout_s = 0
        """,
    )
    settings = load_settings({}, {}, file)
    assert all(getattr(settings, name) != getattr(Settings(), name) for name in RULES)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("db", "", DB),
        ("db", "liveness.db", DB),
        ("db", "sqlite://", DB),
        ("db", "sqlite:///", DB),
        ("db", "sqlite:///folder/", DB),
        ("db", "sqlite:///:memory:", DB),
        ("db", "sqlite:///x.db?mode=ro", DB),
        ("db", "postgresql://", DB),
        ("db", "postgresql://h:port/x", DB),
        ("db", "postgresql://h:70000/x", DB),
        ("db", "postgresql://h/x?sslmode=require", DB),
        ("db", "postgres://h/x", DB),
        ("listen", "7400", LISTEN),
        ("listen", ":7400", LISTEN),
        ("listen", "localhost", LISTEN),
        ("listen", "::1:7400", LISTEN),
        ("listen", "localhost:65536", LISTEN),
        ("listen", "localhost:-1", LISTEN),
        ("listen", "http://localhost:7400", LISTEN),
        ("shards", "0", "a whole number from 1 to 4096"),
        ("shards", "4097", "a whole number from 1 to 4096"),
        ("shards", "6_4", "a whole number from 1 to 4096"),
        ("shards", "64.0", "a whole number from 1 to 4096"),
        ("shards", "٣", "a whole number from 1 to 4096"),
        ("reflection", "maybe", "true or false"),
        ("log_level", "INFO", "one of debug, info, warning, error"),
        ("log_format", "text", "one of auto, console, json"),
        ("commit_interval_ms", "-1", "a number from 0 to 1000"),
        ("commit_interval_ms", "1000.5", "a number from 0 to 1000"),
        ("commit_interval_ms", "nan", "a number from 0 to 1000"),
        ("takeover_grace_ms", "600001", "a whole number from 0 to 600000"),
        ("checkpoint_interval_s", "0", "a number above 0 and at most 86400"),
        ("retention_interval_s", "0", "a number above 0 and at most 2592000"),
        ("task_retention_s", "inf", "a number from 0 to 315360000"),
        ("task_attempts_max", "0", "a whole number from 1 to 1000"),
        ("shutdown_timeout_s", "1e3", "a number from 0 to 3600"),
    ],
)
def test_a_bad_value_is_named_with_its_place_and_its_rule(name: str, value: str, rule: str) -> None:
    flag = "--" + name.replace("_", "-")
    assert refusal({name: value}, {}) == f"flag {flag} is {value!r}, but must be {rule}."
    variable = f"LIVENESS_{name.upper()}"
    assert refusal({}, {variable: value}) == f"variable {variable} is {value!r}, but must be {rule}."
    with pytest.raises(SettingsError, match=f"^setting {name} is "):
        Settings(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "shown", "rule"),
    [
        ('shards = "64"', "'64'", "a whole number from 1 to 4096"),
        ("shards = true", "True", "a whole number from 1 to 4096"),
        ("shards = 1e400", "inf", "a whole number from 1 to 4096"),
        ('reflection = "true"', "'true'", "true or false"),
        ("reflection = 1", "1", "true or false"),
        ("commit_interval_ms = nan", "nan", "a number from 0 to 1000"),
        (f"commit_interval_ms = 1{'0' * 400}", f"1{'0' * 400}", "a number from 0 to 1000"),
        ("log_level = [1]", "[1]", "one of debug, info, warning, error"),
    ],
)
def test_a_bad_value_in_a_file_is_named_with_the_file(
    tmp_path: Path, line: str, shown: str, rule: str
) -> None:
    file = toml(tmp_path, line)
    name = line.split()[0]
    assert refusal({}, {}, file) == f"key {name} in {file} is {shown}, but must be {rule}."


def test_a_bad_value_is_told_even_if_another_source_overrules_it() -> None:
    assert "LIVENESS_SHARDS" in refusal({"shards": "2"}, {"LIVENESS_SHARDS": "none"})


def test_an_unknown_key_in_a_file_is_told_with_a_suggestion(tmp_path: Path) -> None:
    file = toml(tmp_path, "shard = 5")
    assert refusal({}, {}, file) == f"key shard in {file} is not a setting; did you mean shards?"


def test_an_unknown_key_like_no_other_is_told_with_all_there_are(tmp_path: Path) -> None:
    file = toml(tmp_path, "[zzz]\nx = 1")
    assert (
        refusal({}, {}, file) == f"key zzz in {file} is not a setting; there are: {', '.join(sorted(RULES))}."
    )


def test_an_unknown_variable_is_told_with_a_suggestion() -> None:
    sentence = "variable LIVENESS_LOGLEVEL is not a setting; did you mean LIVENESS_LOG_LEVEL?"
    assert refusal({}, {"LIVENESS_LOGLEVEL": "debug"}) == sentence
    with pytest.raises(SettingsError, match="did you mean LIVENESS_ADDRESS"):
        load_client_settings({}, {"LIVENESS_ADRESS": "127.0.0.1:1"})


def test_an_unknown_variable_resembles_no_other_by_its_prefix_alone() -> None:
    assert "did you mean" not in refusal({}, {"LIVENESS_QQQ": "1"})


def test_variables_of_others_are_left_alone() -> None:
    environ = {
        "PATH": "/bin",
        "LIVENESS_ADDRESS": "127.0.0.1:1",
        "LIVENESS_NAMESPACE": "x",
        "LIVENESS_TEST_ANYTHING": "x",
    }
    assert load_settings({}, environ) == Settings()


def test_what_kubernetes_says_about_a_service_called_liveness_is_left_alone() -> None:
    environ = {
        "LIVENESS_SERVICE_HOST": "10.0.0.1",
        "LIVENESS_SERVICE_PORT": "7400",
        "LIVENESS_SERVICE_PORT_GRPC": "7400",
        "LIVENESS_PORT": "tcp://10.0.0.1:7400",
        "LIVENESS_PORT_7400_TCP": "tcp://10.0.0.1:7400",
        "LIVENESS_PORT_7400_TCP_PROTO": "tcp",
        "LIVENESS_UI_SERVICE_HOST": "10.0.0.2",
    }
    assert load_settings({}, environ) == Settings()
    assert "LIVENESS_PORT is not a setting" in refusal({}, {"LIVENESS_PORT": "7400"})


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    assert refusal({}, {}, missing) == (
        f"the configuration file {missing} cannot be read: No such file or directory."
    )
    assert refusal({}, {"LIVENESS_CONFIG": str(tmp_path)}) == (
        f"the configuration file {tmp_path} cannot be read: Is a directory."
    )


def test_a_file_that_is_not_toml_is_told(tmp_path: Path) -> None:
    file = toml(tmp_path, "shards: 5")
    assert refusal({}, {}, file).startswith(f"the configuration file {file} is not valid TOML: ")
    file.write_bytes(b"\xff\xfe")
    assert refusal({}, {}, file) == f"the configuration file {file} is not UTF-8 text."


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("mysql://root:hunter2@h/x", "mysql://root:***@h/x"),
        ("postgresql://u:hun/ter2@more@h:1/x", "postgresql://u:***@h:1/x"),
        ("root:hunter2@h", "root:***@h"),
        ("postgresql://u@h/x?password=hunter2&ssl=require", "postgresql://u@h/x?password=***&ssl=require"),
        ("postgresql://u@h:5432/x", "postgresql://u@h:5432/x"),
        ("sqlite:///a:b@c.db", "sqlite:///a:b@c.db"),
    ],
)
def test_no_password_is_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_no_password_is_in_a_sentence() -> None:
    assert "hunter2" not in refusal({"db": "mysql://root:hunter2@h/x"}, {})


def test_the_file_of_a_sqlite_url() -> None:
    assert Settings(db="sqlite:///x/y.db").sqlite_path == Path("x/y.db")
    assert Settings(db="sqlite:////x/y.db").sqlite_path == Path("/x/y.db")
    assert Settings(db="postgresql://h/x").sqlite_path is None


def test_a_client_finds_its_server_by_flag_or_variable() -> None:
    environ = {
        "LIVENESS_ADDRESS": "a:1",
        "LIVENESS_NAMESPACE": "billing",
        "LIVENESS_SHARDS": "not checked here",
    }
    assert load_client_settings({}, {}) == ClientSettings(address="127.0.0.1:7400", namespace="default")
    assert load_client_settings({}, environ) == ClientSettings(address="a:1", namespace="billing")
    assert load_client_settings({"address": "b:2"}, environ).address == "b:2"


@pytest.mark.parametrize("address", ["", "localhost", "http://localhost:7400", "localhost:0", "::1:7400"])
def test_an_address_that_is_none_is_told(address: str) -> None:
    with pytest.raises(SettingsError, match=r"^variable LIVENESS_ADDRESS is '.*', but must be HOST:PORT"):
        load_client_settings({}, {"LIVENESS_ADDRESS": address})
