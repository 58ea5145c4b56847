"""Worker liveness: who is alive, decided durably and announced exactly once."""
