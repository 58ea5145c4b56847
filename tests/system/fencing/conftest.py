"""Fixtures shared with the in-process tests of fencing."""

from tests.integration.fencing.conftest import database, url

__all__ = ["database", "url"]
