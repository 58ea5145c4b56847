"""Proxies between other engines and their workers: they record leases and bindings here. Each is a client of the server."""
