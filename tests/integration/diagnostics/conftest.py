"""Shared fixtures for the tests of diagnostics."""

from tests.integration.quiet_logs import quiet

__all__ = ["quiet"]
