"""Fixtures shared with the tests of killed servers."""

from __future__ import annotations

from tests.system.server.conftest import durable_postgres as durable_postgres
from tests.system.server.conftest import make_server as make_server
from tests.system.server.conftest import report_result as report_result
