"""Formats of single values: addresses, databases, names, secrets. Also their display without passwords and keys."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

SQLITE = "sqlite:///"
NAME_BYTES_MAX = 255
URL_CHARS_MAX = 2_000
SECRET_CHARS_MIN = 16
SECRET_CHARS_MAX = 1_000

_POSTGRES = "postgresql://"
# The options of asyncpg that are plain text. Its ssl is what libpq calls sslmode.
_POSTGRES_OPTIONS = frozenset({"host", "passfile", "ssl", "target_session_attrs"})


def is_database(url: str) -> bool:
    if url.startswith(SQLITE):
        # A database in memory would lose acknowledged data. A question mark would start options, and there are none.
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
    # asyncpg does not accept the brackets of IPv6 addresses here.
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


def is_loopback(text: str) -> bool:
    """Whether HOST:PORT is reached from this machine only. A name other than localhost may lead anywhere."""
    address = host_port(text)
    if address is None:
        return False
    try:
        return ip_address(address.host).is_loopback
    except ValueError:
        return address.host.lower() == "localhost"


def is_host_name(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*", text) is not None and len(text) <= 253


def is_collector_url(text: str) -> bool:
    """An empty text is valid, too: no collector."""
    _, scheme, address = text.rpartition("://")
    return text == "" or (scheme != "" and text.startswith(("http://", "https://")) and is_address(address))


def is_name(text: str) -> bool:
    """Whether the text can be the name of a namespace or a task queue, by the rules of the API."""
    return (
        re.search(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", text) is None
        and 0 < len(text.encode()) <= NAME_BYTES_MAX
    )


def is_queue_pattern(text: str) -> bool:
    namespace, _, task_queue = text.partition("/")
    return all(part == "*" or ("*" not in part and is_name(part)) for part in (namespace, task_queue))


def patterns_overlap(one: str, other: str) -> bool:
    """Whether a task queue exists that both patterns NAMESPACE/TASK_QUEUE match."""
    pairs = zip(one.partition("/")[::2], other.partition("/")[::2], strict=True)
    return all(a == b or "*" in (a, b) for a, b in pairs)


def is_webhook_url(url: str) -> bool:
    """An empty text is valid, too: no webhook. The URL has no user name, no fragment and nothing that needs escaping."""
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


def is_key_source(text: str) -> bool:
    """A file name, or an https URL; http on loopback only, where nobody can replace the keys on their way. An empty text is
    valid, too: no keys."""
    if not text.startswith(("http:", "https:")):
        return "\0" not in text
    try:
        host = urlsplit(text).hostname
    except ValueError:
        return False
    return is_webhook_url(text) and (text.startswith("https://") or host in ("127.0.0.1", "::1", "localhost"))


def is_grant_rule(text: str) -> bool:
    """CLAIM=PATTERN=>ROLE:NAMESPACE or CLAIM=PATTERN=>ROLE:NAMESPACE:KEY_PREFIX."""
    grant = r"(worker|producer|reader|operator|admin):(\*|[^\s:*]+)(:[^\s]+)?"
    return len(text) <= URL_CHARS_MAX and re.fullmatch(rf"[^=\s]+=[^=\s].*=>{grant}", text) is not None


def is_secret(text: str) -> bool:
    """An empty text is valid, too: no secret."""
    return text == "" or (
        SECRET_CHARS_MIN <= len(text) <= SECRET_CHARS_MAX and text.isprintable() and text == text.strip()
    )


def is_broker_url(url: str) -> bool:
    """A URL of NATS. User name and password may contain any escaped characters."""
    match = re.fullmatch(
        r"(?:nats|tls)://(?:[^\s/?#@,]+@)?(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?/?", url
    )
    return match is not None and (match[1] is None or 0 < int(match[1]) <= 65_535)


# -- without secrets; malformed values, too, since error messages show them


def without_password(url: str) -> str:
    if url.startswith(SQLITE):
        return url
    return re.sub(r"(password=)[^&]*", r"\1***", re.sub(r":(?!//).*@", ":***@", url))


def without_credentials(url: str) -> str:
    """The URL of a broker without user name and password: a user name alone may be a token."""
    return re.sub(r"(?s)^([A-Za-z]*://)?.*@", r"\1***@", url)


def display_value(value: object) -> str:
    return repr(without_password(value)) if isinstance(value, str) else str(value)


def display_broker_urls(value: object) -> str:
    """`value`: a list of URLs, or one text with commas between them."""
    urls = value.split(",") if isinstance(value, str) else value
    if not isinstance(urls, list | tuple):
        return display_value(value)
    return ",".join(without_credentials(str(url).strip()) for url in urls)


def display_webhook_url(url: object) -> str:
    """The URL without user name, path and query, since many receivers put a key there."""
    return repr(re.sub(r"(?s)(?<![/:])([/?#]).+", r"\1***", without_credentials(str(url))))
