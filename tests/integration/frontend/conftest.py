"""Shared fixtures for the tests of the frontend."""

from tests.integration.quiet_logs import quiet

__all__ = ["quiet"]
