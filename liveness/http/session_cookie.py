"""The cookie that carries a browser's session."""

from __future__ import annotations

from starlette.datastructures import Headers

NAME = "__Host-liveness-session"
"""The prefix makes browsers refuse the cookie unless it is Secure, for all paths and for this host alone."""
_ATTRIBUTES = "Path=/; Secure; HttpOnly; SameSite=Strict"
"""Browsers take http://127.0.0.1 and http://localhost for secure."""


def sessions_of(headers: Headers) -> list[str]:
    """Sessions that a browser sent and that are to be the credential. An Authorization header goes first: a proxy may have
    set it."""
    return [] if "authorization" in headers else cookies_of(headers)


def cookies_of(headers: Headers) -> list[str]:
    pairs = (part.partition("=") for line in headers.getlist("cookie") for part in line.split(";"))
    return [value.strip() for name, _, value in pairs if name.strip() == NAME and value.strip()]


def set_cookie(session: str, max_age_s: int) -> str:
    return f"{NAME}={session}; Max-Age={max_age_s}; {_ATTRIBUTES}"


def delete_cookie() -> str:
    return set_cookie("", 0)
