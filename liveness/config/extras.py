"""The optional parts of an installation: `pip install liveness` brings the SDK and the client commands, `liveness[server]` the rest."""

from __future__ import annotations

from importlib.util import find_spec

SERVER_PACKAGES = (
    "alembic",
    "apscheduler",
    "asyncpg",
    "cryptography",
    "grpc_health",
    "grpc_reflection",
    "h11",
    "jwt",
    "prometheus_client",
    "sqlalchemy",
    "starlette",
    "structlog",
    "uvicorn",
)
"""Import names of the packages in the extra `server` of pyproject.toml."""
INSTALL_SERVER_PARTS = "pip install 'liveness[server]'"


def server_parts_installed() -> bool:
    return all(find_spec(package) is not None for package in SERVER_PACKAGES)


def server_parts_needed(subject: str) -> str:
    """The sentence for a person whose installation lacks the server parts."""
    return f"{subject} needs the server parts; install them with: {INSTALL_SERVER_PARTS}"
