"""A node in a container of its own: `python -m tests.system.cluster.renamed_node serve OPTIONS`, like `liveness serve`.

HOST_NAME in the environment is the container's name. Another container, even at the same address, has another one, and
its processes cannot be seen from there. The node does not differ otherwise.
"""

from __future__ import annotations

import os
import sys

import liveness.app
from liveness.server.platform import Platform
from tests.system.cluster.skewed_node import main

if __name__ == "__main__":
    defaults = liveness.app.Server.__init__.__kwdefaults__
    assert defaults is not None
    name = os.environ["HOST_NAME"]
    defaults["platform"] = Platform(host=name, machine=f"container {name}", process_id=1)
    sys.exit(main(sys.argv[1:]))
