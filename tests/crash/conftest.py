"""Fixtures shared with the tests of server and cluster processes."""

from __future__ import annotations

from tests.system.cluster.conftest import cluster_database as cluster_database
from tests.system.cluster.conftest import make_cluster as make_cluster
from tests.system.server.conftest import disk as disk
from tests.system.server.conftest import durable_postgres as durable_postgres
from tests.system.server.conftest import faulty_disk_library as faulty_disk_library
from tests.system.server.conftest import make_server as make_server
from tests.system.server.conftest import report_result as report_result
from tests.system.server.conftest import sqlite_database as sqlite_database
from tests.system.server.conftest import sqlite_url as sqlite_url
