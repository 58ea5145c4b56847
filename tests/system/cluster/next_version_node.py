"""A node of the next version: `python -m tests.system.cluster.next_version_node serve OPTIONS`, like `liveness serve`.

MIGRATIONS in the environment is the folder of its migrations, one more than ours. It does not differ otherwise.
"""

from __future__ import annotations

import os
from pathlib import Path

import liveness.version
from liveness.cli import main
from liveness.store.sql import SqlStore
from tests.integration.store.next_version import VERSION

if __name__ == "__main__":
    liveness.version.VERSION = VERSION  # before the modules that read it are imported
    SqlStore.__init__.__defaults__ = (Path(os.environ["MIGRATIONS"]),)
    main(prog_name="liveness")
