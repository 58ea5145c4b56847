"""What the tests of killed servers have, too."""

from __future__ import annotations

from tests.cluster.conftest import make_cluster as make_cluster
from tests.cluster.conftest import place as place
from tests.end_to_end.conftest import disk as disk
from tests.end_to_end.conftest import durable_postgres as durable_postgres
from tests.end_to_end.conftest import faulty_disk_library as faulty_disk_library
from tests.end_to_end.conftest import make_server as make_server
from tests.end_to_end.conftest import say as say
from tests.end_to_end.conftest import sqlite_file as sqlite_file
from tests.end_to_end.conftest import sqlite_url as sqlite_url
