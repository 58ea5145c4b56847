"""Fixtures shared with the in-process tests of the HTTP API."""

from tests.integration.http.conftest import client, http_harness, stopped_harness

__all__ = ["client", "http_harness", "stopped_harness"]
