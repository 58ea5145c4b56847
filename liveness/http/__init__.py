"""The API over HTTP and JSON, for people, browsers and programs without gRPC.

The HTTP server is a gRPC client of its own node over loopback, so that routing, quotas, deadlines and errors are those of
gRPC. No code is written for a single method: endpoints come from the proto files and their `google.api.http` annotations.
"""
