"""`make sim`: run many simulated worlds."""

from __future__ import annotations

import sys

from tests.simulation.command import main

sys.exit(main())
