"""The frontend: a proxy program without shards that forwards every call to the owner of its shard."""
