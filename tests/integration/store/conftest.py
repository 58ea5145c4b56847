"""Fixtures shared with the tests of clusters."""

from tests.system.cluster.conftest import cluster_database

__all__ = ["cluster_database"]
