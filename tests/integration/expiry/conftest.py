"""Shared fixtures for the tests of expiry."""

from tests.integration.quiet_logs import quiet

__all__ = ["quiet"]
