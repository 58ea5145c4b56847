"""Gives activities to workers, and decides which worker holds which attempt, across nodes."""
