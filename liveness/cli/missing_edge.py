"""Says that the native edge is not installed."""

from __future__ import annotations

import structlog

from liveness.config.settings import LISTENER_AUTO, LISTENER_PYTHON

logger = structlog.get_logger("liveness.app")


def log_missing_edge(setting: str, name: str) -> None:
    """Say it once, when the server serves: what ends a start says one sentence alone."""
    if setting == LISTENER_AUTO and name == LISTENER_PYTHON:
        logger.info("the native edge is not installed; gRPC's own server in Python takes calls in")
