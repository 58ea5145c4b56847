"""Find out whether a server process has ended: nobody listens at its addresses any more.

A machine whose server process has ended refuses connections. A machine that cannot be reached answers nothing. But a
proxy or a tunnel may refuse, too, while the server behind it lives; so these answers count only if the server itself has
confirmed that its addresses are its own (`Pong.direct`).
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from liveness.network_addresses import format_address, split_address

CONNECT_TIMEOUT_S = 0.25
ADDRESSES_MAX = 16


def serving_addresses(target: str) -> tuple[str, ...]:
    """Return each IP:PORT that HOST:PORT stands for, of several only those that accept a connection. Blocks.

    Called while the server at `target` answers, so a single address needs no check."""
    try:
        host, port = split_address(target)
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError, UnicodeError):
        return ()  # gRPC understands other kinds of targets
    addresses = dict.fromkeys(format_address(str(entry[4][0]), port) for entry in entries)
    if len(addresses) > ADDRESSES_MAX:
        return ()
    if len(addresses) == 1:
        return tuple(addresses)
    return tuple(address for address in addresses if _connect_error(address) is None)


def is_refused(addresses: Sequence[str]) -> bool:
    """Return whether all of these addresses refuse connections. Blocks."""
    return bool(addresses) and all(
        isinstance(_connect_error(address), ConnectionRefusedError) for address in addresses
    )


def _connect_error(address: str) -> OSError | None:
    try:
        with socket.create_connection(split_address(address), CONNECT_TIMEOUT_S):
            return None
    except OSError as error:
        return error
