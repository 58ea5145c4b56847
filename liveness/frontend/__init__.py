"""The way to a shard's owner: who owns what, and calls that are carried there."""
