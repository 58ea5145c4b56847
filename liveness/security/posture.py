"""Whether a server may listen where it is told to: beyond loopback only with TLS and authentication."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from typing import NamedTuple

from liveness.templated_error import TemplatedError


class ExposedListeners(TemplatedError):
    template = "{detail}"

    detail: str


class Listener(NamedTuple):
    setting: str
    """The setting that names its address."""
    address: str
    """HOST:PORT."""


class Exposed(NamedTuple):
    """A listener that can be reached from elsewhere without protection."""

    listener: Listener
    missing: tuple[str, ...]
    """What it lacks: TLS, authentication."""

    @property
    def text(self) -> str:
        return f"{self.listener.setting} {self.listener.address} has no {' and no '.join(self.missing)}"


def is_loopback(address: str) -> bool:
    """Whether HOST:PORT, or a host alone, is reached from this machine only."""
    for host in (address, address.rpartition(":")[0]):
        host = host.removeprefix("[").removesuffix("]")
        if host == "localhost":
            return True
        try:
            return ip_address(host).is_loopback
        except ValueError:
            continue  # it has a port; or it is a name, which may stand for any address
    return False


def exposed_listeners(
    listeners: Sequence[Listener], *, has_tls: bool, has_authentication: bool
) -> list[Exposed]:
    missing = (*(() if has_tls else ("TLS",)), *(() if has_authentication else ("authentication",)))
    return [
        Exposed(listener, missing)
        for listener in listeners
        if listener.address and missing and not is_loopback(listener.address)
    ]


def refusal(exposed: Sequence[Exposed]) -> str:
    """One sentence for the person who starts the server."""
    return (
        f"{'; '.join(each.text for each in exposed)}, and can be reached from other machines; set tls_cert_file, tls_key_file "
        "and auth=on, listen on 127.0.0.1, or say --insecure if the network is protected otherwise."
    )


def has_tls(settings: object) -> bool:
    """Whether TLS is configured. The settings may be those of a version or program without TLS."""
    return bool(getattr(settings, "tls_cert_file", "") and getattr(settings, "tls_key_file", ""))


def require_protection(settings: object) -> None:
    """Raises `ExposedListeners` if a server or frontend with these settings must not start."""
    if (why := check_posture(settings)) is not None:
        raise ExposedListeners(detail=why)


def check_posture(settings: object) -> str | None:
    """Returns why a server or frontend with these settings must not start; None if it may."""
    exposed = exposed_settings(settings)
    return refusal(exposed) if exposed and not getattr(settings, "insecure", False) else None


def exposed_settings(settings: object) -> list[Exposed]:
    """The listeners that `--insecure` allows, or would have to allow."""
    listeners = [
        Listener(name, address)
        for name in ("listen", "http")
        if (address := getattr(settings, name, "")) and address != "off"
    ]
    return exposed_listeners(
        listeners,
        has_tls=has_tls(settings),
        has_authentication=getattr(settings, "auth", "off") == "on",
    )
