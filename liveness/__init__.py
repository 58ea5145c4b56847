"""Worker liveness: who is alive, who is not, and what has to be done about it."""
