"""The single writer of each shard: it decides at once, commits in groups, replies after the commit, and recovers by reading
the store again."""
