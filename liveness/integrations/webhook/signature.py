"""Signatures of webhooks. Receivers verify with it that a delivery comes from the server that shares their secret.

    if not verify_signature(secret, headers.get(SIGNATURE_HEADER), body, time.time()):
        ...  # refuse it

The signature covers the time of sending and the body as it was sent, byte by byte: verify before parsing. The module imports
nothing of the server.
"""

from __future__ import annotations

import re
from hashlib import sha256
from hmac import compare_digest, new

DELIVERY_HEADER = "Liveness-Delivery"
"""The id of a delivery, the same for every repetition. The body contains it too, where the signature covers it."""
SIGNATURE_HEADER = "Liveness-Signature"
TOLERANCE_S = 300


def sign(secret: str, body: bytes, at_s: int) -> str:
    """The value of the signature header."""
    return f"t={at_s},v1={_mac(secret, str(at_s), body)}"


def verify_signature(
    secret: str, header: str | None, body: bytes, now: float, tolerance_s: float = TOLERANCE_S
) -> bool:
    """`now` in seconds since 1970. A signature older than the tolerance is refused: it may be a recorded one."""
    parts = [part.partition("=")[::2] for part in (header or "").split(",")]
    times = [value for name, value in parts if name == "t"]
    if len(times) != 1 or not re.fullmatch("[0-9]{1,12}", times[0]):
        return False
    if not abs(now - int(times[0])) <= tolerance_s:
        return False
    expected = _mac(secret, times[0], body).encode()
    # Several signatures and unknown parts are accepted, so that a sender can change its secret or its way of signing.
    given = [value.encode(errors="replace") for name, value in parts if name == "v1"]
    return any(compare_digest(expected, signature) for signature in given)


def _mac(secret: str, at: str, body: bytes) -> str:
    if not secret:
        raise ValueError("the secret is empty; anybody could sign with it")
    return new(secret.encode(), at.encode() + b"." + body, sha256).hexdigest()
