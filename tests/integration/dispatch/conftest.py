"""Fixtures of these tests."""

from tests.integration.quiet_logs import quiet

__all__ = ["quiet"]
