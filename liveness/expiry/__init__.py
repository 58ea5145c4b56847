"""Decide when a lease is over, and how many leases may end at once."""
