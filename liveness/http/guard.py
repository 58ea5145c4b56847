"""Protects the server from web pages of other sites.

Without authentication the server trusts every client that reaches it, and with it, every request with a browser's session. A
browser reaches it on behalf of any page that it shows, so the guard refuses three things: a Host header with a foreign name (a page whose name resolves to this machine: DNS
rebinding), requests of other sites' pages, and changes that a plain HTML form could make.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from urllib.parse import urlsplit

import grpc
from starlette.datastructures import Headers

from liveness.http.errors import HttpError, http_error
from liveness.http.session_cookie import sessions_of

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Sent with every response."""

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_SAFE = ("GET", "HEAD")


class Guard:
    def __init__(
        self, names: Collection[str], *, proxy_hosts: Collection[str] = (), allow_any_ip: bool = False
    ) -> None:
        """`names`: the server's host names besides those of loopback. `proxy_hosts`: further names, accepted with any port,
        since a proxy may change the Host header. `allow_any_ip`: for a server that listens on all addresses; unlike a name,
        an IP address cannot be made to resolve to this machine."""
        self._proxy_hosts = frozenset(map(str.lower, proxy_hosts))
        self._names = _LOOPBACK | self._proxy_hosts | frozenset(map(str.lower, names))
        self._allow_any_ip = allow_any_ip

    def check_host(self, headers: Headers) -> None:
        host = headers.get("host", "")
        name = _host_name(host)
        if name is None or not (name in self._names or (self._allow_any_ip and _is_ip(name))):
            raise http_error(
                421,
                grpc.StatusCode.PERMISSION_DENIED,
                "HOST_NOT_ALLOWED",
                f"This server is not {host[:200]!r}; if it is meant to be reached by that name, start it with "
                "--http-hosts.",
                host=host[:200],
            )

    def check_origin(self, method: str, headers: Headers) -> None:
        for origin in headers.getlist("origin"):
            if not self._is_same_origin(origin, headers.get("host", "")):
                raise _cross_origin_error(f"Pages of {origin[:200]!r} may not use this server.")
        if {"cross-site", "same-site"} & set(headers.getlist("sec-fetch-site")):
            # Links from other sites to the dashboard are allowed.
            is_page_navigation = (
                headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
            )
            if not (method in _SAFE and is_page_navigation):
                raise _cross_origin_error("Pages of other sites may not use this server.")

    def check_session_origin(self, method: str, headers: Headers) -> None:
        """A browser adds its session to whatever a page sends, so a change with a session must say which page it is from.
        Browsers always say so."""
        if method not in _SAFE and sessions_of(headers) and "origin" not in headers:
            raise _cross_origin_error("A change with a browser's session needs the header Origin.")

    def _is_same_origin(self, origin: str, host: str) -> bool:
        try:
            parts = urlsplit(origin)
            name = parts.hostname
        except ValueError:
            return False
        if parts.scheme not in ("http", "https") or name is None:
            return False
        return parts.netloc.lower() == host.lower() or name in self._proxy_hosts


def check_content_type(headers: Headers, *, has_body: bool = True) -> None:
    """Require JSON: any page can send the content types of HTML forms without the browser's preflight request.

    `has_body`: False if a request without a body may also lack the header. A page's request would have the header Origin then,
    which has been checked; to be sure, one with Origin needs the type, too."""
    if not has_body and "content-type" not in headers and "origin" not in headers:
        return
    kind, _, parameters = headers.get("content-type", "").partition(";")
    charset = parameters.strip().lower().removeprefix("charset=").strip('"')
    if kind.strip().lower() != "application/json" or charset not in ("", "utf-8"):
        raise http_error(
            415,
            grpc.StatusCode.INVALID_ARGUMENT,
            "CONTENT_TYPE_NOT_JSON",
            "A request that changes something must have the header Content-Type: application/json.",
        )
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise http_error(
            415,
            grpc.StatusCode.INVALID_ARGUMENT,
            "CONTENT_ENCODED",
            "A body must be plain, without a Content-Encoding.",
        )


def _host_name(host: str) -> str | None:
    match = re.fullmatch(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::[0-9]{1,5})?", host.lower())
    return match and (match[1] or match[2])


def _is_ip(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _cross_origin_error(message: str) -> HttpError:
    return http_error(403, grpc.StatusCode.PERMISSION_DENIED, "ORIGIN_NOT_ALLOWED", message)
