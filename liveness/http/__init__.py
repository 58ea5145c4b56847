"""The same API over HTTP and JSON, for people, browsers and programs without gRPC.

It is a gRPC client of its own node over loopback, so that routing, quotas, deadlines and refusals are those of gRPC.
Nothing here is written for one method: everything is read from the contract and its `google.api.http` annotations.
"""
