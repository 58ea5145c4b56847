"""Routing of calls to the node that owns their shard; shared by nodes and the frontend."""
