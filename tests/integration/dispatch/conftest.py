"""Shared fixtures for the tests of dispatch."""

from tests.integration.quiet_logs import quiet

__all__ = ["quiet"]
