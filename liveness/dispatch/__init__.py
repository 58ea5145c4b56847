"""Bringing activities to workers, and who holds which attempt: here and on other nodes."""
