"""gRPC: translate a request into a command, let the shard decide, wait until it is durable, translate the answer."""
