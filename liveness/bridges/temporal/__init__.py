"""The bridge for unmodified Temporal workers: `bridge.py` puts it together."""
