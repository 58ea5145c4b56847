"""What the tests of killed servers have, too."""

from __future__ import annotations

from tests.end_to_end.conftest import durable_postgres as durable_postgres
from tests.end_to_end.conftest import make_server as make_server
from tests.end_to_end.conftest import say as say
