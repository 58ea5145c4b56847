"""The password of a PostgreSQL database in a file of its own: in a flag, every process on the machine could read it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

from liveness.config.formats import SQLITE, without_password


def has_password(db: str) -> bool:
    return without_password(db) != db


def add_password_from_file(values: dict[str, Any]) -> str:
    """Put the password in `db_password_file`, if that is set, into the URL of `db`. Returns why this cannot be done, else an
    empty text."""
    file, db = values.get("db_password_file"), values.get("db") or SQLITE
    if not file:
        return ""
    if db.startswith(SQLITE):
        return "db_password_file is set, but db is no PostgreSQL database; set db or leave the file out."
    if has_password(db):
        return "db has a password, and db_password_file is set too; keep one of them."
    user, at_sign, rest = db.partition("@")
    if not at_sign or not re.fullmatch(r"[A-Za-z+]+://[^/?]+", user):
        return "db_password_file is set, but db names no user; write postgresql://USER@HOST/DATABASE."
    try:
        password = Path(file).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except OSError as error:
        return f"the database password file {file} cannot be read: {error.strerror}."
    except UnicodeDecodeError:
        return f"the database password file {file} is not UTF-8 text."
    if not password:
        return f"the database password file {file} is empty."
    values["db"] = f"{user}:{quote(password, safe='')}@{rest}"
    return ""
