"""Shared fixtures for the tests of the webhook."""

from tests.integration.quiet_logs import quiet

__all__ = ["quiet"]
