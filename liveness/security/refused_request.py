"""A message of a stream that its sender may not send. The stream goes on for the others."""

from __future__ import annotations

from typing import Any, NamedTuple

from liveness.domain.errors import LivenessError


class RefusedRequest(NamedTuple):
    request: Any
    error: LivenessError
