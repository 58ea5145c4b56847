"""The password of the database may be in a file, so that it is not in the process list."""

from __future__ import annotations

from pathlib import Path

import pytest

from liveness.config.frontend_settings import load_frontend_settings
from liveness.config.settings import SettingsError, load_settings

URL = "postgresql://liveness@db.example:5432/liveness"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text("p@ss:wörd/\n")
    return path


def test_the_password_in_a_file_becomes_part_of_the_url(file: Path) -> None:
    flags = {"db": URL, "db_password_file": str(file)}
    wanted = "postgresql://liveness:p%40ss%3Aw%C3%B6rd%2F@db.example:5432/liveness"
    settings = load_settings(flags, {})
    assert settings.db == wanted
    assert "ss" not in repr(settings).partition("liveness:")[2].partition("@")[0]
    assert load_frontend_settings(flags, {}).db == wanted
    assert load_settings({}, {"LIVENESS_DB": URL, "LIVENESS_DB_PASSWORD_FILE": str(file)}).db == wanted


def test_several_hosts_take_the_password_too(file: Path) -> None:
    url = "postgresql://liveness@/liveness?host=a:5432&host=b:5432"
    settings = load_settings({"db": url, "db_password_file": str(file)}, {})
    assert settings.db.endswith("%2F@/liveness?host=a:5432&host=b:5432")


def test_what_cannot_be_combined_is_refused(file: Path, tmp_path: Path) -> None:
    def refusal(db: str, path: Path) -> str:
        with pytest.raises(SettingsError) as refused:
            load_settings({"db": db, "db_password_file": str(path)}, {})
        return str(refused.value)

    assert refusal("sqlite:///x.db", file) == (
        "db_password_file is set, but db is no PostgreSQL database; set db or leave the file out."
    )
    both = refusal("postgresql://liveness:hunter2@db.example/liveness", file)
    assert both == "db has a password, and db_password_file is set too; keep one of them."
    assert refusal("postgresql://db.example/liveness", file).endswith(
        "write postgresql://USER@HOST/DATABASE."
    )
    missing = tmp_path / "missing"
    assert refusal(URL, missing) == (
        f"the database password file {missing} cannot be read: No such file or directory."
    )
    file.write_bytes(b"\xff\xfe")
    assert refusal(URL, file) == f"the database password file {file} is not UTF-8 text."
    file.write_text("\n")
    assert refusal(URL, file) == f"the database password file {file} is empty."
