"""The gRPC services: translate a request, let the shard decide, wait until the result is durable, translate the answer."""
