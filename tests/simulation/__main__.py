"""`make sim`: many worlds, one after the other."""

from __future__ import annotations

import sys

from tests.simulation.command import main

sys.exit(main())
