"""The single writer of each shard: decide at once, commit in groups, reply after the commit, recover by re-reading."""
