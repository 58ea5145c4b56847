"""Shared by all gRPC code of the server: the mapping of errors to statuses, and tracing."""
