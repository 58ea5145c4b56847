"""What the values of settings may look like: addresses, databases, names, secrets."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from liveness.config.setting_types import SQLITE

NAME_BYTES_MAX = 255
URL_CHARS_MAX = 2_000
SECRET_CHARS_MIN = 16
SECRET_CHARS_MAX = 1_000

_POSTGRES = "postgresql://"
# Those of asyncpg that are plain text; it knows sslmode, which is libpq's, under the name ssl.
_POSTGRES_OPTIONS = frozenset({"host", "passfile", "ssl", "target_session_attrs"})


def is_database(url: str) -> bool:
    if url.startswith(SQLITE):
        # Memory would forget what was acknowledged; a question mark would begin options, of which there are none.
        path = url.removeprefix(SQLITE)
        return path not in ("", ":memory:") and not path.endswith("/") and not set(path) & {"?", "\0"}
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True)
        hosts = [value for name, value in options if name == "host"]
        return (
            url.startswith(_POSTGRES)
            and url != _POSTGRES
            and parts.port != 0
            and {name for name, _ in options} <= _POSTGRES_OPTIONS
            and "," not in "".join(hosts)
            and (len(hosts) < 2 or (parts.hostname is None and all(map(_is_host_of_several, hosts))))
        )
    except ValueError:
        return False


def _is_host_of_several(text: str) -> bool:
    # Brackets of IPv6 addresses are not understood here.
    return (address := host_port(text)) is not None and address.port > 0 and "[" not in text


class HostPort(NamedTuple):
    host: str
    """Without the brackets of an IPv6 address."""
    port: int


def host_port(text: str) -> HostPort | None:
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%a-z]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})", text)
    if match is None or int(match[3]) > 65_535:
        return None
    return HostPort(match[1] or match[2], int(match[3]))


def split_list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def is_address(text: str) -> bool:
    address = host_port(text)
    return address is not None and address.port > 0


def is_host_name(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*", text) is not None and len(text) <= 253


def is_collector_url(text: str) -> bool:
    """Or nothing."""
    _, scheme, address = text.rpartition("://")
    return text == "" or (scheme != "" and text.startswith(("http://", "https://")) and is_address(address))


def is_name(text: str) -> bool:
    """Of a namespace or a task queue, as the server accepts them from its clients."""
    return (
        re.search(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", text) is None
        and 0 < len(text.encode()) <= NAME_BYTES_MAX
    )


def is_queue_pattern(text: str) -> bool:
    namespace, _, task_queue = text.partition("/")
    return all(part == "*" or ("*" not in part and is_name(part)) for part in (namespace, task_queue))


def is_webhook_url(url: str) -> bool:
    """Without anything that would have to be kept secret, escaped or dropped on its way into a request."""
    if url == "":
        return True
    name = r"[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?"
    pattern = rf"https?://(\[[0-9A-Fa-f:.]+\]|{name})(:[0-9]{{1,5}})?([/?][!-~]*)?"
    try:
        return (
            re.fullmatch(pattern, url) is not None
            and "#" not in url
            and urlsplit(url).port != 0
            and len(url) <= URL_CHARS_MAX
        )
    except ValueError:
        return False


def display_webhook_url(url: object) -> str:
    """Many a receiver puts a key into the user name, the path or the query."""
    without_user = re.sub(r"(?s)^([A-Za-z]*://)?.*@", r"\1***@", str(url))
    return repr(re.sub(r"(?s)(?<![/:])([/?#]).+", r"\1***", without_user))


def is_secret(text: str) -> bool:
    return text == "" or (
        SECRET_CHARS_MIN <= len(text) <= SECRET_CHARS_MAX and text.isprintable() and text == text.strip()
    )
