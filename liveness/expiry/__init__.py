"""When a lease is over, and how many may end at once."""
