"""The fleet at a terminal: what `liveness top` shows, and how one moves in it."""
