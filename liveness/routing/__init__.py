"""The way of a call to the node that owns its shard; shared by nodes and the frontend."""
